define void @"softmax_columns"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %max0.0.8 = alloca <16 x float>
  %sum1.1.28 = alloca <16 x float>
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
  %v17 = getelementptr float, ptr %v3, i64 %v9
  %v18 = call ptr @llvm.strip.invariant.group.p0(ptr %v17)
  br label %loop.15
loop.15:
  %r0.0.15 = phi i64 [ 0, %loop.7 ], [ %r0.0.15.next, %next.15 ]
  %v16 = mul i64 %r0.0.15, 40
  %v19 = getelementptr float, ptr %v18, i64 %v16
  %v20 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v19, i32 4, <16 x i1> %v14, <16 x float> zeroinitializer)
  %v21 = load <16 x float>, ptr %max0.0.8
  %v22 = fcmp ogt <16 x float> %v20, %v21
  %v23 = select <16 x i1> %v22, <16 x float> %v20, <16 x float> %v21
  %v24 = fcmp uno <16 x float> %v20, %v20
  %v25 = select <16 x i1> %v24, <16 x float> %v20, <16 x float> %v23
  store <16 x float> %v25, ptr %max0.0.8
  br label %next.15
next.15:
  %r0.0.15.next = add nsw i64 %r0.0.15, 1
  %v26 = icmp slt i64 %r0.0.15.next, 30
  br i1 %v26, label %loop.15, label %done.15, !prof !3, !llvm.loop !2
done.15:
  %v27 = load <16 x float>, ptr %max0.0.8
  store <16 x float> splat (float 0x0000000000000000), ptr %sum1.1.28
  %v29 = trunc i64 %v9 to i32
  %v30 = insertelement <16 x i32> poison, i32 %v29, i64 0
  %v31 = shufflevector <16 x i32> %v30, <16 x i32> poison, <16 x i32> zeroinitializer
  %v32 = add <16 x i32> %v31, %v5
  %v33 = icmp slt <16 x i32> %v32, splat (i32 40)
  %v36 = getelementptr float, ptr %v3, i64 %v9
  %v37 = call ptr @llvm.strip.invariant.group.p0(ptr %v36)
  br label %loop.34
loop.34:
  %r1.0.34 = phi i64 [ 0, %done.15 ], [ %r1.0.34.next, %next.34 ]
  %v35 = mul i64 %r1.0.34, 40
  %v38 = getelementptr float, ptr %v37, i64 %v35
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
  %v64 = fsub <16 x float> %v48, %v48
  %v65 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v60, <16 x float> %v63, <16 x float> %v64)
  %v66 = load <16 x float>, ptr %sum1.1.28
  %v67 = fadd <16 x float> %v66, %v65
  store <16 x float> %v67, ptr %sum1.1.28
  br label %next.34
next.34:
  %r1.0.34.next = add nsw i64 %r1.0.34, 1
  %v68 = icmp slt i64 %r1.0.34.next, 30
  br i1 %v68, label %loop.34, label %done.34, !prof !3, !llvm.loop !4
done.34:
  %v69 = load <16 x float>, ptr %sum1.1.28
  %v70 = trunc i64 %v9 to i32
  %v71 = insertelement <16 x i32> poison, i32 %v70, i64 0
  %v72 = shufflevector <16 x i32> %v71, <16 x i32> poison, <16 x i32> zeroinitializer
  %v73 = add <16 x i32> %v72, %v6
  %v74 = icmp slt <16 x i32> %v73, splat (i32 40)
  %v75 = fdiv <16 x float> splat (float 0x3FF0000000000000), %v69
  %v78 = getelementptr float, ptr %v3, i64 %v9
  %v79 = call ptr @llvm.strip.invariant.group.p0(ptr %v78)
  %v109 = getelementptr float, ptr %v1, i64 %v9
  %v110 = call ptr @llvm.strip.invariant.group.p0(ptr %v109)
  br label %loop.76
loop.76:
  %i0.0.76 = phi i64 [ 0, %done.34 ], [ %i0.0.76.next, %next.76 ]
  %v77 = mul i64 %i0.0.76, 40
  %v80 = getelementptr float, ptr %v79, i64 %v77
  %v81 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v80, i32 4, <16 x i1> %v74, <16 x float> zeroinitializer)
  %v82 = fsub <16 x float> %v81, %v27
  %v83 = fcmp olt <16 x float> %v82, splat (float 0xC05A6206C0000000)
  %v84 = select <16 x i1> %v83, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v82
  %v85 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v84
  %v86 = select <16 x i1> %v85, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v84
  %v87 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v86, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v88 = fsub <16 x float> %v87, splat (float 0x4168001300000000)
  %v89 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v88, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v86)
  %v90 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v88, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v89)
  %v91 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v90, <16 x float> splat (float 0x3DF12399E0000000))
  %v92 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v91, <16 x float> %v90, <16 x float> splat (float 0x3E15558B40000000))
  %v93 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v92, <16 x float> %v90, <16 x float> splat (float 0x3E35554920000000))
  %v94 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v93, <16 x float> %v90, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v95 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v94, <16 x float> %v90, <16 x float> splat (float 0x3E60000000000000))
  %v96 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v95, <16 x float> %v90, <16 x float> splat (float 0x3E60000000000000))
  %v97 = bitcast <16 x float> %v96 to <16 x i32>
  %v98 = bitcast <16 x float> %v87 to <16 x i32>
  %v99 = lshr <16 x i32> %v98, splat (i32 1)
  %v100 = shl <16 x i32> %v99, splat (i32 23)
  %v101 = add <16 x i32> %v97, %v100
  %v102 = bitcast <16 x i32> %v101 to <16 x float>
  %v103 = sub <16 x i32> %v98, %v99
  %v104 = shl <16 x i32> %v103, splat (i32 23)
  %v105 = bitcast <16 x i32> %v104 to <16 x float>
  %v106 = fsub <16 x float> %v90, %v90
  %v107 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v102, <16 x float> %v105, <16 x float> %v106)
  %v108 = fmul <16 x float> %v107, %v75
  %v111 = getelementptr float, ptr %v110, i64 %v77
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v108, ptr %v111, i32 4, <16 x i1> %v74)
  br label %next.76
next.76:
  %i0.0.76.next = add nsw i64 %i0.0.76, 1
  %v112 = icmp slt i64 %i0.0.76.next, 30
  br i1 %v112, label %loop.76, label %done.76, !prof !3, !llvm.loop !5
done.76:
  br label %next.7
next.7:
  %i0.1.o.7.next = add nsw i64 %i0.1.o.7, 1
  %v113 = icmp slt i64 %i0.1.o.7.next, 3
  br i1 %v113, label %loop.7, label %done.7, !prof !7, !llvm.loop !6
done.7:
  ret void
}
define i64 @"softmax_columns.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare ptr @llvm.strip.invariant.group.p0(ptr)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 29, i32 1}
!4 = distinct !{!4, !0, !1}
!5 = distinct !{!5, !0, !1}
!6 = distinct !{!6, !0, !1}
!7 = !{!"branch_weights", i32 2, i32 1}
