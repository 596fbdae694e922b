define void @"stream"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = getelementptr float, ptr %v3, i64 0
  %v5 = load <8 x float>, ptr %v4, align 4
  %v6 = fadd <8 x float> %v5, splat (float 0x3FF0000000000000)
  %v7 = getelementptr float, ptr %v1, i64 0
  %v9 = ptrtoint ptr %v7 to i64
  %v10 = and i64 %v9, 31
  %v11 = icmp eq i64 %v10, 0
  br i1 %v11, label %stream.8, label %plain.8
stream.8:
  store <8 x float> %v6, ptr %v7, align 32, !nontemporal !0
  br label %stored.8
plain.8:
  store <8 x float> %v6, ptr %v7, align 4
  br label %stored.8
stored.8:
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
