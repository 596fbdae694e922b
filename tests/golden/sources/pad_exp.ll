define void @"pad_exp"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v5 = mul <16 x i32> %v4, splat (i32 -1)
  br label %loop.6
loop.6:
  %i0.0.o.6 = phi i64 [ 0, %entry ], [ %i0.0.o.6.next, %next.6 ]
  %v7 = mul i64 %i0.0.o.6, 16
  %v8 = trunc i64 %v7 to i32
  %v9 = insertelement <16 x i32> poison, i32 %v8, i64 0
  %v10 = shufflevector <16 x i32> %v9, <16 x i32> poison, <16 x i32> zeroinitializer
  %v11 = add <16 x i32> %v10, %v4
  %v12 = icmp slt <16 x i32> %v11, splat (i32 7)
  %v13 = mul i64 %i0.0.o.6, -16
  %v14 = trunc i64 %v13 to i32
  %v15 = insertelement <16 x i32> poison, i32 %v14, i64 0
  %v16 = shufflevector <16 x i32> %v15, <16 x i32> poison, <16 x i32> zeroinitializer
  %v17 = add <16 x i32> %v16, %v5
  %v18 = icmp slt <16 x i32> %v17, splat (i32 -1)
  %v19 = and <16 x i1> %v12, %v18
  %v20 = icmp slt <16 x i32> %v11, splat (i32 10)
  %v21 = and <16 x i1> %v20, %v12
  %v22 = and <16 x i1> %v21, %v18
  %v23 = getelementptr float, ptr %v3, i64 %v7
  %v24 = getelementptr i8, ptr %v23, i64 -8
  %v25 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v24, i32 4, <16 x i1> %v22, <16 x float> zeroinitializer)
  %v26 = fcmp olt <16 x float> %v25, splat (float 0xC05A6206C0000000)
  %v27 = select <16 x i1> %v26, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v25
  %v28 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v27
  %v29 = select <16 x i1> %v28, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v27
  %v30 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v29, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v31 = fsub <16 x float> %v30, splat (float 0x4168001300000000)
  %v32 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v31, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v29)
  %v33 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v31, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v32)
  %v34 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v33, <16 x float> splat (float 0x3DF12399E0000000))
  %v35 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v34, <16 x float> %v33, <16 x float> splat (float 0x3E15558B40000000))
  %v36 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v35, <16 x float> %v33, <16 x float> splat (float 0x3E35554920000000))
  %v37 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v36, <16 x float> %v33, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v38 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v37, <16 x float> %v33, <16 x float> splat (float 0x3E60000000000000))
  %v39 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v38, <16 x float> %v33, <16 x float> splat (float 0x3E60000000000000))
  %v40 = bitcast <16 x float> %v39 to <16 x i32>
  %v41 = bitcast <16 x float> %v30 to <16 x i32>
  %v42 = lshr <16 x i32> %v41, splat (i32 1)
  %v43 = shl <16 x i32> %v42, splat (i32 23)
  %v44 = add <16 x i32> %v40, %v43
  %v45 = bitcast <16 x i32> %v44 to <16 x float>
  %v46 = sub <16 x i32> %v41, %v42
  %v47 = shl <16 x i32> %v46, splat (i32 23)
  %v48 = bitcast <16 x i32> %v47 to <16 x float>
  %v49 = fsub <16 x float> %v33, %v33
  %v50 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v45, <16 x float> %v48, <16 x float> %v49)
  %v51 = select <16 x i1> %v19, <16 x float> %v50, <16 x float> splat (float 0x0000000000000000)
  %v52 = getelementptr float, ptr %v1, i64 %v7
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v51, ptr %v52, i32 4, <16 x i1> %v20)
  br label %next.6
next.6:
  %i0.0.o.6.next = add nsw i64 %i0.0.o.6, 1
  %v53 = icmp slt i64 %i0.0.o.6.next, 1
  br i1 %v53, label %loop.6, label %done.6, !prof !3, !llvm.loop !2
done.6:
  ret void
}
define i64 @"pad_exp.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 0, i32 1}
