define void @"sum_rows"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum0.p.0.6 = alloca <16 x float>
  %sum0.p.1.7 = alloca <16 x float>
  %sum0.p.2.8 = alloca <16 x float>
  %sum0.p.3.9 = alloca <16 x float>
  %sum0.4.68 = alloca float
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  br label %loop.5
loop.5:
  %i0.0.5 = phi i64 [ 0, %entry ], [ %i0.0.5.next, %next.5 ]
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.0.6
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.1.7
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.2.8
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.3.9
  %v10 = mul i64 %i0.0.5, 77
  %v13 = getelementptr float, ptr %v3, i64 %v10
  %v14 = call ptr @llvm.strip.invariant.group.p0(ptr %v13)
  br label %loop.11
loop.11:
  %r0.1.o.11 = phi i64 [ 0, %loop.5 ], [ %r0.1.o.11.next, %next.11 ]
  %v12 = mul i64 %r0.1.o.11, 64
  %v15 = getelementptr float, ptr %v14, i64 %v12
  %v16 = load <16 x float>, ptr %v15, align 4
  %v17 = load <16 x float>, ptr %sum0.p.0.6
  %v18 = fadd <16 x float> %v17, %v16
  store <16 x float> %v18, ptr %sum0.p.0.6
  %v19 = getelementptr i8, ptr %v15, i64 64
  %v20 = load <16 x float>, ptr %v19, align 4
  %v21 = load <16 x float>, ptr %sum0.p.1.7
  %v22 = fadd <16 x float> %v21, %v20
  store <16 x float> %v22, ptr %sum0.p.1.7
  %v23 = getelementptr i8, ptr %v15, i64 128
  %v24 = load <16 x float>, ptr %v23, align 4
  %v25 = load <16 x float>, ptr %sum0.p.2.8
  %v26 = fadd <16 x float> %v25, %v24
  store <16 x float> %v26, ptr %sum0.p.2.8
  %v27 = getelementptr i8, ptr %v15, i64 192
  %v28 = load <16 x float>, ptr %v27, align 4
  %v29 = load <16 x float>, ptr %sum0.p.3.9
  %v30 = fadd <16 x float> %v29, %v28
  store <16 x float> %v30, ptr %sum0.p.3.9
  br label %next.11
next.11:
  %r0.1.o.11.next = add nsw i64 %r0.1.o.11, 1
  %v31 = icmp slt i64 %r0.1.o.11.next, 1
  br i1 %v31, label %loop.11, label %done.11, !prof !3, !llvm.loop !2
done.11:
  %v39 = getelementptr float, ptr %v3, i64 %v10
  %v40 = call ptr @llvm.strip.invariant.group.p0(ptr %v39)
  br label %loop.32
loop.32:
  %r0.1.o.32 = phi i64 [ 1, %done.11 ], [ %r0.1.o.32.next, %next.32 ]
  %v33 = mul i64 %r0.1.o.32, 64
  %v34 = trunc i64 %v33 to i32
  %v35 = insertelement <16 x i32> poison, i32 %v34, i64 0
  %v36 = shufflevector <16 x i32> %v35, <16 x i32> poison, <16 x i32> zeroinitializer
  %v37 = add <16 x i32> %v36, %v4
  %v38 = icmp slt <16 x i32> %v37, splat (i32 77)
  %v41 = getelementptr float, ptr %v40, i64 %v33
  %v42 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v41, i32 4, <16 x i1> %v38, <16 x float> zeroinitializer)
  %v43 = load <16 x float>, ptr %sum0.p.0.6
  %v44 = fadd <16 x float> %v43, %v42
  store <16 x float> %v44, ptr %sum0.p.0.6
  %v45 = icmp slt i64 %r0.1.o.32, 1
  %v46 = insertelement <16 x i1> poison, i1 %v45, i64 0
  %v47 = shufflevector <16 x i1> %v46, <16 x i1> poison, <16 x i32> zeroinitializer
  %v48 = getelementptr i8, ptr %v41, i64 64
  %v49 = select i1 %v45, ptr %v48, ptr %v3
  %v50 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v49, i32 4, <16 x i1> %v47, <16 x float> zeroinitializer)
  %v51 = load <16 x float>, ptr %sum0.p.1.7
  %v52 = fadd <16 x float> %v51, %v50
  store <16 x float> %v52, ptr %sum0.p.1.7
  %v53 = getelementptr i8, ptr %v41, i64 128
  %v54 = select i1 %v45, ptr %v53, ptr %v3
  %v55 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v54, i32 4, <16 x i1> %v47, <16 x float> zeroinitializer)
  %v56 = load <16 x float>, ptr %sum0.p.2.8
  %v57 = fadd <16 x float> %v56, %v55
  store <16 x float> %v57, ptr %sum0.p.2.8
  %v58 = getelementptr i8, ptr %v41, i64 192
  %v59 = select i1 %v45, ptr %v58, ptr %v3
  %v60 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v59, i32 4, <16 x i1> %v47, <16 x float> zeroinitializer)
  %v61 = load <16 x float>, ptr %sum0.p.3.9
  %v62 = fadd <16 x float> %v61, %v60
  store <16 x float> %v62, ptr %sum0.p.3.9
  br label %next.32
next.32:
  %r0.1.o.32.next = add nsw i64 %r0.1.o.32, 1
  %v63 = icmp slt i64 %r0.1.o.32.next, 2
  br i1 %v63, label %loop.32, label %done.32, !prof !3, !llvm.loop !4
done.32:
  %v64 = load <16 x float>, ptr %sum0.p.0.6
  %v65 = load <16 x float>, ptr %sum0.p.1.7
  %v66 = load <16 x float>, ptr %sum0.p.2.8
  %v67 = load <16 x float>, ptr %sum0.p.3.9
  store float 0x0000000000000000, ptr %sum0.4.68
  %v69 = fadd <16 x float> %v64, %v65
  %v70 = fadd <16 x float> %v66, %v67
  %v71 = fadd <16 x float> %v69, %v70
  %v72 = shufflevector <16 x float> %v71, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v73 = shufflevector <16 x float> %v71, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v74 = fadd <8 x float> %v72, %v73
  %v75 = shufflevector <8 x float> %v74, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v76 = shufflevector <8 x float> %v74, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v77 = fadd <4 x float> %v75, %v76
  %v78 = shufflevector <4 x float> %v77, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v79 = shufflevector <4 x float> %v77, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v80 = fadd <2 x float> %v78, %v79
  %v81 = extractelement <2 x float> %v80, i64 0
  %v82 = extractelement <2 x float> %v80, i64 1
  %v83 = fadd float %v81, %v82
  store float %v83, ptr %sum0.4.68
  %v84 = load float, ptr %sum0.4.68
  %v85 = getelementptr float, ptr %v1, i64 %i0.0.5
  store float %v84, ptr %v85, align 4
  br label %next.5
next.5:
  %i0.0.5.next = add nsw i64 %i0.0.5, 1
  %v86 = icmp slt i64 %i0.0.5.next, 9
  br i1 %v86, label %loop.5, label %done.5, !prof !6, !llvm.loop !5
done.5:
  ret void
}
define i64 @"sum_rows.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare ptr @llvm.strip.invariant.group.p0(ptr)
attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 0, i32 1}
!4 = distinct !{!4, !0, !1}
!5 = distinct !{!5, !0, !1}
!6 = !{!"branch_weights", i32 8, i32 1}
