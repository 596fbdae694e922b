define void @"softmax_columns"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %max0.0.9 = alloca <16 x float>
  %sum1.1.28 = alloca <16 x float>
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v5 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v6 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v8 = icmp slt i64 %start, %stop
  br i1 %v8, label %loop.7, label %done.7
loop.7:
  %i0.1.o.7 = phi i64 [ %start, %entry ], [ %i0.1.o.7.next, %next.7 ]
  store <16 x float> splat (float 0xFFF0000000000000), ptr %max0.0.9
  %v10 = mul i64 %i0.1.o.7, 16
  %v11 = trunc i64 %v10 to i32
  %v12 = insertelement <16 x i32> poison, i32 %v11, i64 0
  %v13 = shufflevector <16 x i32> %v12, <16 x i32> poison, <16 x i32> zeroinitializer
  %v14 = add <16 x i32> %v13, %v4
  %v15 = icmp slt <16 x i32> %v14, splat (i32 40)
  br label %loop.16
loop.16:
  %r0.0.16 = phi i64 [ 0, %loop.7 ], [ %r0.0.16.next, %next.16 ]
  %v17 = load <16 x float>, ptr %max0.0.9
  %v18 = mul i64 %r0.0.16, 40
  %v19 = add i64 %v18, %v10
  %v20 = getelementptr float, ptr %v3, i64 %v19
  %v21 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v20, i32 4, <16 x i1> %v15, <16 x float> zeroinitializer)
  %v22 = fcmp ogt <16 x float> %v21, %v17
  %v23 = select <16 x i1> %v22, <16 x float> %v21, <16 x float> %v17
  %v24 = fcmp uno <16 x float> %v21, %v21
  %v25 = select <16 x i1> %v24, <16 x float> %v21, <16 x float> %v23
  store <16 x float> %v25, ptr %max0.0.9
  br label %next.16
next.16:
  %r0.0.16.next = add nsw i64 %r0.0.16, 1
  %v26 = icmp slt i64 %r0.0.16.next, 30
  br i1 %v26, label %loop.16, label %done.16, !llvm.loop !2
done.16:
  %v27 = load <16 x float>, ptr %max0.0.9
  store <16 x float> splat (float 0x0000000000000000), ptr %sum1.1.28
  %v29 = trunc i64 %v10 to i32
  %v30 = insertelement <16 x i32> poison, i32 %v29, i64 0
  %v31 = shufflevector <16 x i32> %v30, <16 x i32> poison, <16 x i32> zeroinitializer
  %v32 = add <16 x i32> %v31, %v5
  %v33 = icmp slt <16 x i32> %v32, splat (i32 40)
  br label %loop.34
loop.34:
  %r1.0.34 = phi i64 [ 0, %done.16 ], [ %r1.0.34.next, %next.34 ]
  %v35 = load <16 x float>, ptr %sum1.1.28
  %v36 = mul i64 %r1.0.34, 40
  %v37 = add i64 %v36, %v10
  %v38 = getelementptr float, ptr %v3, i64 %v37
  %v39 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v38, i32 4, <16 x i1> %v33, <16 x float> zeroinitializer)
  %v40 = fsub <16 x float> %v39, %v27
  %v41 = fcmp olt <16 x float> %v40, splat (float 0xC05A6206C0000000)
  %v42 = select <16 x i1> %v41, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v40
  %v43 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v42
  %v44 = select <16 x i1> %v43, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v42
  %v45 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v44, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v46 = fsub <16 x float> %v45, splat (float 0x4168001300000000)
  %v47 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v46, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v44)
  %v48 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v46, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v47)
  %v49 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v48, <16 x float> splat (float 0x3DF12399E0000000))
  %v50 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v49, <16 x float> %v48, <16 x float> splat (float 0x3E15558B40000000))
  %v51 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v50, <16 x float> %v48, <16 x float> splat (float 0x3E35554920000000))
  %v52 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v51, <16 x float> %v48, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v53 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v52, <16 x float> %v48, <16 x float> splat (float 0x3E60000000000000))
  %v54 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v53, <16 x float> %v48, <16 x float> splat (float 0x3E60000000000000))
  %v55 = bitcast <16 x float> %v54 to <16 x i32>
  %v56 = bitcast <16 x float> %v45 to <16 x i32>
  %v57 = lshr <16 x i32> %v56, splat (i32 1)
  %v58 = shl <16 x i32> %v57, splat (i32 23)
  %v59 = add <16 x i32> %v55, %v58
  %v60 = bitcast <16 x i32> %v59 to <16 x float>
  %v61 = sub <16 x i32> %v56, %v57
  %v62 = shl <16 x i32> %v61, splat (i32 23)
  %v63 = bitcast <16 x i32> %v62 to <16 x float>
  %v64 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v60, <16 x float> %v63, <16 x float> %v35)
  store <16 x float> %v64, ptr %sum1.1.28
  br label %next.34
next.34:
  %r1.0.34.next = add nsw i64 %r1.0.34, 1
  %v65 = icmp slt i64 %r1.0.34.next, 30
  br i1 %v65, label %loop.34, label %done.34, !llvm.loop !3
done.34:
  %v66 = load <16 x float>, ptr %sum1.1.28
  %v67 = trunc i64 %v10 to i32
  %v68 = insertelement <16 x i32> poison, i32 %v67, i64 0
  %v69 = shufflevector <16 x i32> %v68, <16 x i32> poison, <16 x i32> zeroinitializer
  %v70 = add <16 x i32> %v69, %v6
  %v71 = icmp slt <16 x i32> %v70, splat (i32 40)
  %v72 = fdiv <16 x float> splat (float 0x3FF0000000000000), %v66
  br label %loop.73
loop.73:
  %i0.0.73 = phi i64 [ 0, %done.34 ], [ %i0.0.73.next, %next.73 ]
  %v74 = mul i64 %i0.0.73, 40
  %v75 = add i64 %v74, %v10
  %v76 = getelementptr float, ptr %v3, i64 %v75
  %v77 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v76, i32 4, <16 x i1> %v71, <16 x float> zeroinitializer)
  %v78 = fsub <16 x float> %v77, %v27
  %v79 = fcmp olt <16 x float> %v78, splat (float 0xC05A6206C0000000)
  %v80 = select <16 x i1> %v79, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v78
  %v81 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v80
  %v82 = select <16 x i1> %v81, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v80
  %v83 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v82, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v84 = fsub <16 x float> %v83, splat (float 0x4168001300000000)
  %v85 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v84, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v82)
  %v86 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v84, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v85)
  %v87 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v86, <16 x float> splat (float 0x3DF12399E0000000))
  %v88 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v87, <16 x float> %v86, <16 x float> splat (float 0x3E15558B40000000))
  %v89 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v88, <16 x float> %v86, <16 x float> splat (float 0x3E35554920000000))
  %v90 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v89, <16 x float> %v86, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v91 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v90, <16 x float> %v86, <16 x float> splat (float 0x3E60000000000000))
  %v92 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v91, <16 x float> %v86, <16 x float> splat (float 0x3E60000000000000))
  %v93 = bitcast <16 x float> %v92 to <16 x i32>
  %v94 = bitcast <16 x float> %v83 to <16 x i32>
  %v95 = lshr <16 x i32> %v94, splat (i32 1)
  %v96 = shl <16 x i32> %v95, splat (i32 23)
  %v97 = add <16 x i32> %v93, %v96
  %v98 = bitcast <16 x i32> %v97 to <16 x float>
  %v99 = sub <16 x i32> %v94, %v95
  %v100 = shl <16 x i32> %v99, splat (i32 23)
  %v101 = bitcast <16 x i32> %v100 to <16 x float>
  %v102 = fmul <16 x float> %v98, %v101
  %v103 = fmul <16 x float> %v102, %v72
  %v104 = getelementptr float, ptr %v1, i64 %v75
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v103, ptr %v104, i32 4, <16 x i1> %v71)
  br label %next.73
next.73:
  %i0.0.73.next = add nsw i64 %i0.0.73, 1
  %v105 = icmp slt i64 %i0.0.73.next, 30
  br i1 %v105, label %loop.73, label %done.73, !llvm.loop !4
done.73:
  br label %next.7
next.7:
  %i0.1.o.7.next = add nsw i64 %i0.1.o.7, 1
  %v106 = icmp slt i64 %i0.1.o.7.next, %stop
  br i1 %v106, label %loop.7, label %done.7, !llvm.loop !5
done.7:
  ret void
}
define i64 @"softmax_columns.extent"(ptr %args) #0 {
entry:
  ret i64 3
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
