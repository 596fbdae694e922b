define void @"pad_exp"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = mul <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, splat (i64 -1)
  br label %loop.5
loop.5:
  %i0.0.o.5 = phi i64 [ 0, %entry ], [ %i0.0.o.5.next, %next.5 ]
  %v6 = mul i64 %i0.0.o.5, 16
  %v7 = insertelement <16 x i64> poison, i64 %v6, i64 0
  %v8 = shufflevector <16 x i64> %v7, <16 x i64> poison, <16 x i32> zeroinitializer
  %v9 = add <16 x i64> %v8, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  %v10 = icmp slt <16 x i64> %v9, splat (i64 7)
  %v11 = mul i64 %i0.0.o.5, -16
  %v12 = insertelement <16 x i64> poison, i64 %v11, i64 0
  %v13 = shufflevector <16 x i64> %v12, <16 x i64> poison, <16 x i32> zeroinitializer
  %v14 = add <16 x i64> %v13, %v4
  %v15 = icmp slt <16 x i64> %v14, splat (i64 -1)
  %v16 = and <16 x i1> %v10, %v15
  %v17 = icmp slt <16 x i64> %v9, splat (i64 10)
  %v18 = and <16 x i1> %v17, %v10
  %v19 = and <16 x i1> %v18, %v15
  %v20 = add i64 %v6, -2
  %v21 = getelementptr float, ptr %v3, i64 %v20
  %v22 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v21, i32 4, <16 x i1> %v19, <16 x float> zeroinitializer)
  %v23 = fcmp olt <16 x float> %v22, splat (float 0xC05A6206C0000000)
  %v24 = select <16 x i1> %v23, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v22
  %v25 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v24
  %v26 = select <16 x i1> %v25, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v24
  %v27 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v26, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v28 = fsub <16 x float> %v27, splat (float 0x4168001300000000)
  %v29 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v28, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v26)
  %v30 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v28, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v29)
  %v31 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v30, <16 x float> splat (float 0x3DF12399E0000000))
  %v32 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v31, <16 x float> %v30, <16 x float> splat (float 0x3E15558B40000000))
  %v33 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v32, <16 x float> %v30, <16 x float> splat (float 0x3E35554920000000))
  %v34 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v33, <16 x float> %v30, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v35 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v34, <16 x float> %v30, <16 x float> splat (float 0x3E60000000000000))
  %v36 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v35, <16 x float> %v30, <16 x float> splat (float 0x3E60000000000000))
  %v37 = bitcast <16 x float> %v36 to <16 x i32>
  %v38 = bitcast <16 x float> %v27 to <16 x i32>
  %v39 = lshr <16 x i32> %v38, splat (i32 1)
  %v40 = shl <16 x i32> %v39, splat (i32 23)
  %v41 = add <16 x i32> %v37, %v40
  %v42 = bitcast <16 x i32> %v41 to <16 x float>
  %v43 = sub <16 x i32> %v38, %v39
  %v44 = shl <16 x i32> %v43, splat (i32 23)
  %v45 = bitcast <16 x i32> %v44 to <16 x float>
  %v46 = fmul <16 x float> %v42, %v45
  %v47 = select <16 x i1> %v16, <16 x float> %v46, <16 x float> splat (float 0x0000000000000000)
  %v48 = getelementptr float, ptr %v1, i64 %v6
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v47, ptr %v48, i32 4, <16 x i1> %v17)
  br label %next.5
next.5:
  %i0.0.o.5.next = add nsw i64 %i0.0.o.5, 1
  %v49 = icmp slt i64 %i0.0.o.5.next, 1
  br i1 %v49, label %loop.5, label %done.5, !llvm.loop !2
done.5:
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
