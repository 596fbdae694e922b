define void @"softmax_columns"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %max0.0.6 = alloca <16 x float>
  %sum1.1.24 = alloca <16 x float>
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v5 = icmp slt i64 %start, %stop
  br i1 %v5, label %loop.4, label %done.4
loop.4:
  %i0.1.o.4 = phi i64 [ %start, %entry ], [ %i0.1.o.4.next, %next.4 ]
  store <16 x float> splat (float 0xFFF0000000000000), ptr %max0.0.6
  %v7 = mul i64 %i0.1.o.4, 16
  %v8 = insertelement <16 x i64> poison, i64 %v7, i64 0
  %v9 = shufflevector <16 x i64> %v8, <16 x i64> poison, <16 x i32> zeroinitializer
  %v10 = add <16 x i64> %v9, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  %v11 = icmp slt <16 x i64> %v10, splat (i64 40)
  br label %loop.12
loop.12:
  %r0.0.12 = phi i64 [ 0, %loop.4 ], [ %r0.0.12.next, %next.12 ]
  %v13 = load <16 x float>, ptr %max0.0.6
  %v14 = mul i64 %r0.0.12, 40
  %v15 = add i64 %v14, %v7
  %v16 = getelementptr float, ptr %v3, i64 %v15
  %v17 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v16, i32 4, <16 x i1> %v11, <16 x float> zeroinitializer)
  %v18 = fcmp ogt <16 x float> %v17, %v13
  %v19 = select <16 x i1> %v18, <16 x float> %v17, <16 x float> %v13
  %v20 = fcmp uno <16 x float> %v17, %v17
  %v21 = select <16 x i1> %v20, <16 x float> %v17, <16 x float> %v19
  store <16 x float> %v21, ptr %max0.0.6
  br label %next.12
next.12:
  %r0.0.12.next = add nsw i64 %r0.0.12, 1
  %v22 = icmp slt i64 %r0.0.12.next, 30
  br i1 %v22, label %loop.12, label %done.12, !llvm.loop !2
done.12:
  %v23 = load <16 x float>, ptr %max0.0.6
  store <16 x float> splat (float 0x0000000000000000), ptr %sum1.1.24
  %v25 = add <16 x i64> %v9, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  %v26 = icmp slt <16 x i64> %v25, splat (i64 40)
  br label %loop.27
loop.27:
  %r1.0.27 = phi i64 [ 0, %done.12 ], [ %r1.0.27.next, %next.27 ]
  %v28 = load <16 x float>, ptr %sum1.1.24
  %v29 = mul i64 %r1.0.27, 40
  %v30 = add i64 %v29, %v7
  %v31 = getelementptr float, ptr %v3, i64 %v30
  %v32 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v31, i32 4, <16 x i1> %v26, <16 x float> zeroinitializer)
  %v33 = fsub <16 x float> %v32, %v23
  %v34 = fcmp olt <16 x float> %v33, splat (float 0xC05A6206C0000000)
  %v35 = select <16 x i1> %v34, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v33
  %v36 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v35
  %v37 = select <16 x i1> %v36, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v35
  %v38 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v37, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v39 = fsub <16 x float> %v38, splat (float 0x4168001300000000)
  %v40 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v39, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v37)
  %v41 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v39, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v40)
  %v42 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v41, <16 x float> splat (float 0x3DF12399E0000000))
  %v43 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v42, <16 x float> %v41, <16 x float> splat (float 0x3E15558B40000000))
  %v44 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v43, <16 x float> %v41, <16 x float> splat (float 0x3E35554920000000))
  %v45 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v44, <16 x float> %v41, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v46 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v45, <16 x float> %v41, <16 x float> splat (float 0x3E60000000000000))
  %v47 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v46, <16 x float> %v41, <16 x float> splat (float 0x3E60000000000000))
  %v48 = bitcast <16 x float> %v47 to <16 x i32>
  %v49 = bitcast <16 x float> %v38 to <16 x i32>
  %v50 = lshr <16 x i32> %v49, splat (i32 1)
  %v51 = shl <16 x i32> %v50, splat (i32 23)
  %v52 = add <16 x i32> %v48, %v51
  %v53 = bitcast <16 x i32> %v52 to <16 x float>
  %v54 = sub <16 x i32> %v49, %v50
  %v55 = shl <16 x i32> %v54, splat (i32 23)
  %v56 = bitcast <16 x i32> %v55 to <16 x float>
  %v57 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v53, <16 x float> %v56, <16 x float> %v28)
  store <16 x float> %v57, ptr %sum1.1.24
  br label %next.27
next.27:
  %r1.0.27.next = add nsw i64 %r1.0.27, 1
  %v58 = icmp slt i64 %r1.0.27.next, 30
  br i1 %v58, label %loop.27, label %done.27, !llvm.loop !3
done.27:
  %v59 = load <16 x float>, ptr %sum1.1.24
  %v60 = add <16 x i64> %v9, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  %v61 = icmp slt <16 x i64> %v60, splat (i64 40)
  %v62 = fdiv <16 x float> splat (float 0x3FF0000000000000), %v59
  br label %loop.63
loop.63:
  %i0.0.63 = phi i64 [ 0, %done.27 ], [ %i0.0.63.next, %next.63 ]
  %v64 = mul i64 %i0.0.63, 40
  %v65 = add i64 %v64, %v7
  %v66 = getelementptr float, ptr %v3, i64 %v65
  %v67 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v66, i32 4, <16 x i1> %v61, <16 x float> zeroinitializer)
  %v68 = fsub <16 x float> %v67, %v23
  %v69 = fcmp olt <16 x float> %v68, splat (float 0xC05A6206C0000000)
  %v70 = select <16 x i1> %v69, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v68
  %v71 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v70
  %v72 = select <16 x i1> %v71, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v70
  %v73 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v72, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v74 = fsub <16 x float> %v73, splat (float 0x4168001300000000)
  %v75 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v74, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v72)
  %v76 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v74, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v75)
  %v77 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v76, <16 x float> splat (float 0x3DF12399E0000000))
  %v78 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v77, <16 x float> %v76, <16 x float> splat (float 0x3E15558B40000000))
  %v79 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v78, <16 x float> %v76, <16 x float> splat (float 0x3E35554920000000))
  %v80 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v79, <16 x float> %v76, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v81 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v80, <16 x float> %v76, <16 x float> splat (float 0x3E60000000000000))
  %v82 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v81, <16 x float> %v76, <16 x float> splat (float 0x3E60000000000000))
  %v83 = bitcast <16 x float> %v82 to <16 x i32>
  %v84 = bitcast <16 x float> %v73 to <16 x i32>
  %v85 = lshr <16 x i32> %v84, splat (i32 1)
  %v86 = shl <16 x i32> %v85, splat (i32 23)
  %v87 = add <16 x i32> %v83, %v86
  %v88 = bitcast <16 x i32> %v87 to <16 x float>
  %v89 = sub <16 x i32> %v84, %v85
  %v90 = shl <16 x i32> %v89, splat (i32 23)
  %v91 = bitcast <16 x i32> %v90 to <16 x float>
  %v92 = fmul <16 x float> %v88, %v91
  %v93 = fmul <16 x float> %v92, %v62
  %v94 = getelementptr float, ptr %v1, i64 %v65
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v93, ptr %v94, i32 4, <16 x i1> %v61)
  br label %next.63
next.63:
  %i0.0.63.next = add nsw i64 %i0.0.63, 1
  %v95 = icmp slt i64 %i0.0.63.next, 30
  br i1 %v95, label %loop.63, label %done.63, !llvm.loop !4
done.63:
  br label %next.4
next.4:
  %i0.1.o.4.next = add nsw i64 %i0.1.o.4, 1
  %v96 = icmp slt i64 %i0.1.o.4.next, %stop
  br i1 %v96, label %loop.4, label %done.4, !llvm.loop !5
done.4:
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
