define void @"softmax_columns"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %max0.0.8 = alloca <16 x float>
  %sum1.1.27 = alloca <16 x float>
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v5 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v6 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  br label %loop.7
loop.7:
  %i0.1.o.7 = phi i64 [ 0, %entry ], [ %i0.1.o.7.next, %next.7 ]
  store <16 x float> splat (float 0xFFF0000000000000), ptr %max0.0.8
  %v9 = mul i64 %i0.1.o.7, 16
  %v10 = trunc i64 %v9 to i32
  %v11 = insertelement <16 x i32> poison, i32 %v10, i64 0
  %v12 = shufflevector <16 x i32> %v11, <16 x i32> poison, <16 x i32> zeroinitializer
  %v13 = add <16 x i32> %v12, %v4
  %v14 = icmp slt <16 x i32> %v13, splat (i32 40)
  br label %loop.15
loop.15:
  %r0.0.15 = phi i64 [ 0, %loop.7 ], [ %r0.0.15.next, %next.15 ]
  %v16 = mul i64 %r0.0.15, 40
  %v17 = add i64 %v16, %v9
  %v18 = getelementptr float, ptr %v3, i64 %v17
  %v19 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v18, i32 4, <16 x i1> %v14, <16 x float> zeroinitializer)
  %v20 = load <16 x float>, ptr %max0.0.8
  %v21 = fcmp ogt <16 x float> %v19, %v20
  %v22 = select <16 x i1> %v21, <16 x float> %v19, <16 x float> %v20
  %v23 = fcmp uno <16 x float> %v19, %v19
  %v24 = select <16 x i1> %v23, <16 x float> %v19, <16 x float> %v22
  store <16 x float> %v24, ptr %max0.0.8
  br label %next.15
next.15:
  %r0.0.15.next = add nsw i64 %r0.0.15, 1
  %v25 = icmp slt i64 %r0.0.15.next, 30
  br i1 %v25, label %loop.15, label %done.15, !llvm.loop !2
done.15:
  %v26 = load <16 x float>, ptr %max0.0.8
  store <16 x float> splat (float 0x0000000000000000), ptr %sum1.1.27
  %v28 = trunc i64 %v9 to i32
  %v29 = insertelement <16 x i32> poison, i32 %v28, i64 0
  %v30 = shufflevector <16 x i32> %v29, <16 x i32> poison, <16 x i32> zeroinitializer
  %v31 = add <16 x i32> %v30, %v5
  %v32 = icmp slt <16 x i32> %v31, splat (i32 40)
  br label %loop.33
loop.33:
  %r1.0.33 = phi i64 [ 0, %done.15 ], [ %r1.0.33.next, %next.33 ]
  %v34 = mul i64 %r1.0.33, 40
  %v35 = add i64 %v34, %v9
  %v36 = getelementptr float, ptr %v3, i64 %v35
  %v37 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v36, i32 4, <16 x i1> %v32, <16 x float> zeroinitializer)
  %v38 = fsub <16 x float> %v37, %v26
  %v39 = fcmp olt <16 x float> %v38, splat (float 0xC05A6206C0000000)
  %v40 = select <16 x i1> %v39, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v38
  %v41 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v40
  %v42 = select <16 x i1> %v41, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v40
  %v43 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v42, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v44 = fsub <16 x float> %v43, splat (float 0x4168001300000000)
  %v45 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v44, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v42)
  %v46 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v44, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v45)
  %v47 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v46, <16 x float> splat (float 0x3DF12399E0000000))
  %v48 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v47, <16 x float> %v46, <16 x float> splat (float 0x3E15558B40000000))
  %v49 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v48, <16 x float> %v46, <16 x float> splat (float 0x3E35554920000000))
  %v50 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v49, <16 x float> %v46, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v51 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v50, <16 x float> %v46, <16 x float> splat (float 0x3E60000000000000))
  %v52 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v51, <16 x float> %v46, <16 x float> splat (float 0x3E60000000000000))
  %v53 = bitcast <16 x float> %v52 to <16 x i32>
  %v54 = bitcast <16 x float> %v43 to <16 x i32>
  %v55 = lshr <16 x i32> %v54, splat (i32 1)
  %v56 = shl <16 x i32> %v55, splat (i32 23)
  %v57 = add <16 x i32> %v53, %v56
  %v58 = bitcast <16 x i32> %v57 to <16 x float>
  %v59 = sub <16 x i32> %v54, %v55
  %v60 = shl <16 x i32> %v59, splat (i32 23)
  %v61 = bitcast <16 x i32> %v60 to <16 x float>
  %v62 = fsub <16 x float> %v46, %v46
  %v63 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v58, <16 x float> %v61, <16 x float> %v62)
  %v64 = load <16 x float>, ptr %sum1.1.27
  %v65 = fadd <16 x float> %v64, %v63
  store <16 x float> %v65, ptr %sum1.1.27
  br label %next.33
next.33:
  %r1.0.33.next = add nsw i64 %r1.0.33, 1
  %v66 = icmp slt i64 %r1.0.33.next, 30
  br i1 %v66, label %loop.33, label %done.33, !llvm.loop !3
done.33:
  %v67 = load <16 x float>, ptr %sum1.1.27
  %v68 = trunc i64 %v9 to i32
  %v69 = insertelement <16 x i32> poison, i32 %v68, i64 0
  %v70 = shufflevector <16 x i32> %v69, <16 x i32> poison, <16 x i32> zeroinitializer
  %v71 = add <16 x i32> %v70, %v6
  %v72 = icmp slt <16 x i32> %v71, splat (i32 40)
  %v73 = fdiv <16 x float> splat (float 0x3FF0000000000000), %v67
  br label %loop.74
loop.74:
  %i0.0.74 = phi i64 [ 0, %done.33 ], [ %i0.0.74.next, %next.74 ]
  %v75 = mul i64 %i0.0.74, 40
  %v76 = add i64 %v75, %v9
  %v77 = getelementptr float, ptr %v3, i64 %v76
  %v78 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v77, i32 4, <16 x i1> %v72, <16 x float> zeroinitializer)
  %v79 = fsub <16 x float> %v78, %v26
  %v80 = fcmp olt <16 x float> %v79, splat (float 0xC05A6206C0000000)
  %v81 = select <16 x i1> %v80, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v79
  %v82 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v81
  %v83 = select <16 x i1> %v82, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v81
  %v84 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v83, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v85 = fsub <16 x float> %v84, splat (float 0x4168001300000000)
  %v86 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v85, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v83)
  %v87 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v85, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v86)
  %v88 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v87, <16 x float> splat (float 0x3DF12399E0000000))
  %v89 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v88, <16 x float> %v87, <16 x float> splat (float 0x3E15558B40000000))
  %v90 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v89, <16 x float> %v87, <16 x float> splat (float 0x3E35554920000000))
  %v91 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v90, <16 x float> %v87, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v92 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v91, <16 x float> %v87, <16 x float> splat (float 0x3E60000000000000))
  %v93 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v92, <16 x float> %v87, <16 x float> splat (float 0x3E60000000000000))
  %v94 = bitcast <16 x float> %v93 to <16 x i32>
  %v95 = bitcast <16 x float> %v84 to <16 x i32>
  %v96 = lshr <16 x i32> %v95, splat (i32 1)
  %v97 = shl <16 x i32> %v96, splat (i32 23)
  %v98 = add <16 x i32> %v94, %v97
  %v99 = bitcast <16 x i32> %v98 to <16 x float>
  %v100 = sub <16 x i32> %v95, %v96
  %v101 = shl <16 x i32> %v100, splat (i32 23)
  %v102 = bitcast <16 x i32> %v101 to <16 x float>
  %v103 = fsub <16 x float> %v87, %v87
  %v104 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v99, <16 x float> %v102, <16 x float> %v103)
  %v105 = fmul <16 x float> %v104, %v73
  %v106 = getelementptr float, ptr %v1, i64 %v76
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v105, ptr %v106, i32 4, <16 x i1> %v72)
  br label %next.74
next.74:
  %i0.0.74.next = add nsw i64 %i0.0.74, 1
  %v107 = icmp slt i64 %i0.0.74.next, 30
  br i1 %v107, label %loop.74, label %done.74, !llvm.loop !4
done.74:
  br label %next.7
next.7:
  %i0.1.o.7.next = add nsw i64 %i0.1.o.7, 1
  %v108 = icmp slt i64 %i0.1.o.7.next, 3
  br i1 %v108, label %loop.7, label %done.7, !llvm.loop !5
done.7:
  ret void
}
define i64 @"softmax_columns.extent"(ptr %args) #0 {
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
!3 = distinct !{!3, !0, !1}
!4 = distinct !{!4, !0, !1}
!5 = distinct !{!5, !0, !1}
