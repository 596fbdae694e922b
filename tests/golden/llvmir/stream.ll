define void @"stream"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = load <8 x float>, ptr %v3, align 4
  %v5 = fadd <8 x float> %v4, splat (float 0x3FF0000000000000)
  %v7 = ptrtoint ptr %v1 to i64
  %v8 = and i64 %v7, 31
  %v9 = icmp eq i64 %v8, 0
  br i1 %v9, label %stream.6, label %plain.6
stream.6:
  store <8 x float> %v5, ptr %v1, align 32, !nontemporal !0
  br label %stored.6
plain.6:
  store <8 x float> %v5, ptr %v1, align 4
  br label %stored.6
stored.6:
  call void @llvm.x86.sse.sfence()
  ret void
}
define i64 @"stream.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare void @llvm.x86.sse.sfence()
attributes #0 = { nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{i32 1}
