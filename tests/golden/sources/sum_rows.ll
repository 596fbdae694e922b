define void @"sum_rows"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum0.p.0.6 = alloca <16 x float>
  %sum0.p.1.7 = alloca <16 x float>
  %sum0.p.2.8 = alloca <16 x float>
  %sum0.p.3.9 = alloca <16 x float>
  %sum0.4.65 = alloca float
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
  %v49 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v48, i32 4, <16 x i1> %v47, <16 x float> zeroinitializer)
  %v50 = load <16 x float>, ptr %sum0.p.1.7
  %v51 = fadd <16 x float> %v50, %v49
  store <16 x float> %v51, ptr %sum0.p.1.7
  %v52 = getelementptr i8, ptr %v41, i64 128
  %v53 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v52, i32 4, <16 x i1> %v47, <16 x float> zeroinitializer)
  %v54 = load <16 x float>, ptr %sum0.p.2.8
  %v55 = fadd <16 x float> %v54, %v53
  store <16 x float> %v55, ptr %sum0.p.2.8
  %v56 = getelementptr i8, ptr %v41, i64 192
  %v57 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v56, i32 4, <16 x i1> %v47, <16 x float> zeroinitializer)
  %v58 = load <16 x float>, ptr %sum0.p.3.9
  %v59 = fadd <16 x float> %v58, %v57
  store <16 x float> %v59, ptr %sum0.p.3.9
  br label %next.32
next.32:
  %r0.1.o.32.next = add nsw i64 %r0.1.o.32, 1
  %v60 = icmp slt i64 %r0.1.o.32.next, 2
  br i1 %v60, label %loop.32, label %done.32, !prof !3, !llvm.loop !4
done.32:
  %v61 = load <16 x float>, ptr %sum0.p.0.6
  %v62 = load <16 x float>, ptr %sum0.p.1.7
  %v63 = load <16 x float>, ptr %sum0.p.2.8
  %v64 = load <16 x float>, ptr %sum0.p.3.9
  store float 0x0000000000000000, ptr %sum0.4.65
  %v66 = fadd <16 x float> %v61, %v62
  %v67 = fadd <16 x float> %v63, %v64
  %v68 = fadd <16 x float> %v66, %v67
  %v69 = shufflevector <16 x float> %v68, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v70 = shufflevector <16 x float> %v68, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v71 = fadd <8 x float> %v69, %v70
  %v72 = shufflevector <8 x float> %v71, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v73 = shufflevector <8 x float> %v71, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v74 = fadd <4 x float> %v72, %v73
  %v75 = shufflevector <4 x float> %v74, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v76 = shufflevector <4 x float> %v74, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v77 = fadd <2 x float> %v75, %v76
  %v78 = extractelement <2 x float> %v77, i64 0
  %v79 = extractelement <2 x float> %v77, i64 1
  %v80 = fadd float %v78, %v79
  store float %v80, ptr %sum0.4.65
  %v81 = load float, ptr %sum0.4.65
  %v82 = getelementptr float, ptr %v1, i64 %i0.0.5
  store float %v81, ptr %v82, align 4
  br label %next.5
next.5:
  %i0.0.5.next = add nsw i64 %i0.0.5, 1
  %v83 = icmp slt i64 %i0.0.5.next, 9
  br i1 %v83, label %loop.5, label %done.5, !prof !6, !llvm.loop !5
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
