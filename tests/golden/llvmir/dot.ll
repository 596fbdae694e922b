define void @"dot"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum.10 = alloca <8 x float>
  %v1 = getelementptr i8, ptr %args, i64 24
  %v2 = load i64, ptr %v1, align 8
  %v3 = load ptr, ptr %args, align 8
  %v4 = getelementptr i8, ptr %args, i64 8
  %v5 = load ptr, ptr %v4, align 8
  %v6 = getelementptr i8, ptr %args, i64 16
  %v7 = load ptr, ptr %v6, align 8
  %v9 = icmp slt i64 %start, %stop
  br i1 %v9, label %loop.8, label %done.8
loop.8:
  %row.8 = phi i64 [ %start, %entry ], [ %row.8.next, %next.8 ]
  store <8 x float> splat (float 0x0000000000000000), ptr %sum.10
  %v11 = mul i64 %row.8, 64
  %v14 = getelementptr float, ptr %v5, i64 %v11
  %v15 = call ptr @llvm.strip.invariant.group.p0(ptr %v14)
  %v18 = getelementptr float, ptr %v7, i64 %v11
  %v19 = call ptr @llvm.strip.invariant.group.p0(ptr %v18)
  br label %loop.12
loop.12:
  %k.12 = phi i64 [ 0, %loop.8 ], [ %k.12.next, %next.12 ]
  %v13 = load <8 x float>, ptr %sum.10
  %v16 = getelementptr float, ptr %v15, i64 %k.12
  %v17 = load <8 x float>, ptr %v16, align 4
  %v20 = getelementptr float, ptr %v19, i64 %k.12
  %v21 = load <8 x float>, ptr %v20, align 4
  %v22 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v17, <8 x float> %v21, <8 x float> %v13)
  store <8 x float> %v22, ptr %sum.10
  br label %next.12
next.12:
  %k.12.next = add nsw i64 %k.12, 8
  %v23 = icmp slt i64 %k.12.next, 64
  br i1 %v23, label %loop.12, label %done.12, !prof !3, !llvm.loop !2
done.12:
  %v24 = load <8 x float>, ptr %sum.10
  %v25 = shufflevector <8 x float> %v24, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v26 = shufflevector <8 x float> %v24, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v27 = fadd <4 x float> %v25, %v26
  %v28 = shufflevector <4 x float> %v27, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v29 = shufflevector <4 x float> %v27, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v30 = fadd <2 x float> %v28, %v29
  %v31 = extractelement <2 x float> %v30, i64 0
  %v32 = extractelement <2 x float> %v30, i64 1
  %v33 = fadd float %v31, %v32
  %v34 = getelementptr float, ptr %v3, i64 %row.8
  store float %v33, ptr %v34, align 4
  br label %next.8
next.8:
  %row.8.next = add nsw i64 %row.8, 1
  %v35 = icmp slt i64 %row.8.next, %stop
  br i1 %v35, label %loop.8, label %done.8, !llvm.loop !4
done.8:
  ret void
}
define i64 @"dot.extent"(ptr %args) #0 {
entry:
  %v1 = getelementptr i8, ptr %args, i64 24
  %v2 = load i64, ptr %v1, align 8
  ret i64 %v2
}
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare ptr @llvm.strip.invariant.group.p0(ptr)
attributes #0 = { nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 7, i32 1}
!4 = distinct !{!4, !0, !1}
