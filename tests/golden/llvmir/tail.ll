define void @"tail"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  br label %loop.4
loop.4:
  %i.4 = phi i64 [ 0, %entry ], [ %i.4.next, %next.4 ]
  %v5 = insertelement <8 x i64> poison, i64 %i.4, i64 0
  %v6 = shufflevector <8 x i64> %v5, <8 x i64> poison, <8 x i32> zeroinitializer
  %v7 = add <8 x i64> %v6, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>
  %v8 = icmp slt <8 x i64> %v7, splat (i64 21)
  %v9 = getelementptr i16, ptr %v3, i64 %i.4
  %v10 = call <8 x i16> @llvm.masked.load.v8i16.p0(ptr %v9, i32 2, <8 x i1> %v8, <8 x i16> zeroinitializer)
  %v11 = zext <8 x i16> %v10 to <8 x i32>
  %v12 = shl <8 x i32> %v11, splat (i32 16)
  %v13 = bitcast <8 x i32> %v12 to <8 x float>
  %v14 = fcmp ogt <8 x float> splat (float 0x0000000000000000), %v13
  %v15 = select <8 x i1> %v14, <8 x float> splat (float 0x0000000000000000), <8 x float> %v13
  %v16 = bitcast <8 x float> %v15 to <8 x i32>
  %v17 = lshr <8 x i32> %v16, splat (i32 16)
  %v18 = and <8 x i32> %v17, splat (i32 1)
  %v19 = add <8 x i32> %v18, splat (i32 32767)
  %v20 = add <8 x i32> %v16, %v19
  %v21 = lshr <8 x i32> %v20, splat (i32 16)
  %v22 = or <8 x i32> %v17, splat (i32 64)
  %v23 = fcmp uno <8 x float> %v15, %v15
  %v24 = select <8 x i1> %v23, <8 x i32> %v22, <8 x i32> %v21
  %v25 = trunc <8 x i32> %v24 to <8 x i16>
  %v26 = getelementptr i16, ptr %v1, i64 %i.4
  call void @llvm.masked.store.v8i16.p0(<8 x i16> %v25, ptr %v26, i32 2, <8 x i1> %v8)
  br label %next.4
next.4:
  %i.4.next = add nsw i64 %i.4, 8
  %v27 = icmp slt i64 %i.4.next, 21
  br i1 %v27, label %loop.4, label %done.4, !prof !3, !llvm.loop !2
done.4:
  ret void
}
define i64 @"tail.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <8 x i16> @llvm.masked.load.v8i16.p0(ptr, i32, <8 x i1>, <8 x i16>)
declare void @llvm.masked.store.v8i16.p0(<8 x i16>, ptr, i32, <8 x i1>)
attributes #0 = { nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 2, i32 1}
