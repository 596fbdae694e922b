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
  %v34 = load <16 x float>, ptr %sum1.1.27
  %v35 = mul i64 %r1.0.33, 40
  %v36 = add i64 %v35, %v9
  %v37 = getelementptr float, ptr %v3, i64 %v36
  %v38 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v37, i32 4, <16 x i1> %v32, <16 x float> zeroinitializer)
  %v39 = fsub <16 x float> %v38, %v26
  %v40 = fcmp olt <16 x float> %v39, splat (float 0xC05A6206C0000000)
  %v41 = select <16 x i1> %v40, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v39
  %v42 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v41
  %v43 = select <16 x i1> %v42, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v41
  %v44 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v43, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v45 = fsub <16 x float> %v44, splat (float 0x4168001300000000)
  %v46 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v45, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v43)
  %v47 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v45, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v46)
  %v48 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v47, <16 x float> splat (float 0x3DF12399E0000000))
  %v49 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v48, <16 x float> %v47, <16 x float> splat (float 0x3E15558B40000000))
  %v50 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v49, <16 x float> %v47, <16 x float> splat (float 0x3E35554920000000))
  %v51 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v50, <16 x float> %v47, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v52 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v51, <16 x float> %v47, <16 x float> splat (float 0x3E60000000000000))
  %v53 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v52, <16 x float> %v47, <16 x float> splat (float 0x3E60000000000000))
  %v54 = bitcast <16 x float> %v53 to <16 x i32>
  %v55 = bitcast <16 x float> %v44 to <16 x i32>
  %v56 = lshr <16 x i32> %v55, splat (i32 1)
  %v57 = shl <16 x i32> %v56, splat (i32 23)
  %v58 = add <16 x i32> %v54, %v57
  %v59 = bitcast <16 x i32> %v58 to <16 x float>
  %v60 = sub <16 x i32> %v55, %v56
  %v61 = shl <16 x i32> %v60, splat (i32 23)
  %v62 = bitcast <16 x i32> %v61 to <16 x float>
  %v63 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v59, <16 x float> %v62, <16 x float> %v34)
  store <16 x float> %v63, ptr %sum1.1.27
  br label %next.33
next.33:
  %r1.0.33.next = add nsw i64 %r1.0.33, 1
  %v64 = icmp slt i64 %r1.0.33.next, 30
  br i1 %v64, label %loop.33, label %done.33, !llvm.loop !3
done.33:
  %v65 = load <16 x float>, ptr %sum1.1.27
  %v66 = trunc i64 %v9 to i32
  %v67 = insertelement <16 x i32> poison, i32 %v66, i64 0
  %v68 = shufflevector <16 x i32> %v67, <16 x i32> poison, <16 x i32> zeroinitializer
  %v69 = add <16 x i32> %v68, %v6
  %v70 = icmp slt <16 x i32> %v69, splat (i32 40)
  %v71 = fdiv <16 x float> splat (float 0x3FF0000000000000), %v65
  br label %loop.72
loop.72:
  %i0.0.72 = phi i64 [ 0, %done.33 ], [ %i0.0.72.next, %next.72 ]
  %v73 = mul i64 %i0.0.72, 40
  %v74 = add i64 %v73, %v9
  %v75 = getelementptr float, ptr %v3, i64 %v74
  %v76 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v75, i32 4, <16 x i1> %v70, <16 x float> zeroinitializer)
  %v77 = fsub <16 x float> %v76, %v26
  %v78 = fcmp olt <16 x float> %v77, splat (float 0xC05A6206C0000000)
  %v79 = select <16 x i1> %v78, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v77
  %v80 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v79
  %v81 = select <16 x i1> %v80, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v79
  %v82 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v81, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v83 = fsub <16 x float> %v82, splat (float 0x4168001300000000)
  %v84 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v83, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v81)
  %v85 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v83, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v84)
  %v86 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v85, <16 x float> splat (float 0x3DF12399E0000000))
  %v87 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v86, <16 x float> %v85, <16 x float> splat (float 0x3E15558B40000000))
  %v88 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v87, <16 x float> %v85, <16 x float> splat (float 0x3E35554920000000))
  %v89 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v88, <16 x float> %v85, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v90 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v89, <16 x float> %v85, <16 x float> splat (float 0x3E60000000000000))
  %v91 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v90, <16 x float> %v85, <16 x float> splat (float 0x3E60000000000000))
  %v92 = bitcast <16 x float> %v91 to <16 x i32>
  %v93 = bitcast <16 x float> %v82 to <16 x i32>
  %v94 = lshr <16 x i32> %v93, splat (i32 1)
  %v95 = shl <16 x i32> %v94, splat (i32 23)
  %v96 = add <16 x i32> %v92, %v95
  %v97 = bitcast <16 x i32> %v96 to <16 x float>
  %v98 = sub <16 x i32> %v93, %v94
  %v99 = shl <16 x i32> %v98, splat (i32 23)
  %v100 = bitcast <16 x i32> %v99 to <16 x float>
  %v101 = fmul <16 x float> %v97, %v100
  %v102 = fmul <16 x float> %v101, %v71
  %v103 = getelementptr float, ptr %v1, i64 %v74
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v102, ptr %v103, i32 4, <16 x i1> %v70)
  br label %next.72
next.72:
  %i0.0.72.next = add nsw i64 %i0.0.72, 1
  %v104 = icmp slt i64 %i0.0.72.next, 30
  br i1 %v104, label %loop.72, label %done.72, !llvm.loop !4
done.72:
  br label %next.7
next.7:
  %i0.1.o.7.next = add nsw i64 %i0.1.o.7, 1
  %v105 = icmp slt i64 %i0.1.o.7.next, 3
  br i1 %v105, label %loop.7, label %done.7, !llvm.loop !5
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
