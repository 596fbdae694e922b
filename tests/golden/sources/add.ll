define void @"add"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = getelementptr i8, ptr %args, i64 16
  %v5 = load ptr, ptr %v4, align 8
  br label %loop.6
loop.6:
  %i0.0_i0.1.o.6 = phi i64 [ 0, %entry ], [ %i0.0_i0.1.o.6.next, %next.6 ]
  %v7 = mul i64 %i0.0_i0.1.o.6, 16
  %v8 = getelementptr float, ptr %v3, i64 %v7
  %v9 = load <16 x float>, ptr %v8, align 4
  %v10 = getelementptr float, ptr %v5, i64 %v7
  %v11 = load <16 x float>, ptr %v10, align 4
  %v12 = fadd <16 x float> %v9, %v11
  %v13 = getelementptr float, ptr %v1, i64 %v7
  store <16 x float> %v12, ptr %v13, align 4
  br label %next.6
next.6:
  %i0.0_i0.1.o.6.next = add nsw i64 %i0.0_i0.1.o.6, 1
  %v14 = icmp slt i64 %i0.0_i0.1.o.6.next, 14
  br i1 %v14, label %loop.6, label %done.6, !prof !3, !llvm.loop !2
done.6:
  %v15 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  br label %loop.16
loop.16:
  %i0.0_i0.1.o.16 = phi i64 [ 14, %done.6 ], [ %i0.0_i0.1.o.16.next, %next.16 ]
  %v17 = mul i64 %i0.0_i0.1.o.16, 16
  %v18 = trunc i64 %v17 to i32
  %v19 = insertelement <16 x i32> poison, i32 %v18, i64 0
  %v20 = shufflevector <16 x i32> %v19, <16 x i32> poison, <16 x i32> zeroinitializer
  %v21 = add <16 x i32> %v20, %v15
  %v22 = icmp slt <16 x i32> %v21, splat (i32 231)
  %v23 = getelementptr float, ptr %v3, i64 %v17
  %v24 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v23, i32 4, <16 x i1> %v22, <16 x float> zeroinitializer)
  %v25 = getelementptr float, ptr %v5, i64 %v17
  %v26 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v25, i32 4, <16 x i1> %v22, <16 x float> zeroinitializer)
  %v27 = fadd <16 x float> %v24, %v26
  %v28 = getelementptr float, ptr %v1, i64 %v17
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v27, ptr %v28, i32 4, <16 x i1> %v22)
  br label %next.16
next.16:
  %i0.0_i0.1.o.16.next = add nsw i64 %i0.0_i0.1.o.16, 1
  %v29 = icmp slt i64 %i0.0_i0.1.o.16.next, 15
  br i1 %v29, label %loop.16, label %done.16, !prof !5, !llvm.loop !4
done.16:
  ret void
}
define i64 @"add.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 13, i32 1}
!4 = distinct !{!4, !0, !1}
!5 = !{!"branch_weights", i32 0, i32 1}
