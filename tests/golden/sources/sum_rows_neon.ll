define void @"sum_rows_neon"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum0.p.0.6 = alloca <4 x float>
  %sum0.p.1.7 = alloca <4 x float>
  %sum0.p.2.8 = alloca <4 x float>
  %sum0.p.3.9 = alloca <4 x float>
  %sum0.4.62 = alloca float
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = trunc <4 x i64> <i64 0, i64 1, i64 2, i64 3> to <4 x i32>
  br label %loop.5
loop.5:
  %i0.0.5 = phi i64 [ 0, %entry ], [ %i0.0.5.next, %next.5 ]
  store <4 x float> splat (float 0x0000000000000000), ptr %sum0.p.0.6
  store <4 x float> splat (float 0x0000000000000000), ptr %sum0.p.1.7
  store <4 x float> splat (float 0x0000000000000000), ptr %sum0.p.2.8
  store <4 x float> splat (float 0x0000000000000000), ptr %sum0.p.3.9
  %v10 = mul i64 %i0.0.5, 77
  %v13 = getelementptr float, ptr %v3, i64 %v10
  %v14 = call ptr @llvm.strip.invariant.group.p0(ptr %v13)
  br label %loop.11
loop.11:
  %r0.1.o.11 = phi i64 [ 0, %loop.5 ], [ %r0.1.o.11.next, %next.11 ]
  %v12 = mul i64 %r0.1.o.11, 16
  %v15 = getelementptr float, ptr %v14, i64 %v12
  %v16 = load <4 x float>, ptr %v15, align 4
  %v17 = load <4 x float>, ptr %sum0.p.0.6
  %v18 = fadd <4 x float> %v17, %v16
  store <4 x float> %v18, ptr %sum0.p.0.6
  %v19 = getelementptr i8, ptr %v15, i64 16
  %v20 = load <4 x float>, ptr %v19, align 4
  %v21 = load <4 x float>, ptr %sum0.p.1.7
  %v22 = fadd <4 x float> %v21, %v20
  store <4 x float> %v22, ptr %sum0.p.1.7
  %v23 = getelementptr i8, ptr %v15, i64 32
  %v24 = load <4 x float>, ptr %v23, align 4
  %v25 = load <4 x float>, ptr %sum0.p.2.8
  %v26 = fadd <4 x float> %v25, %v24
  store <4 x float> %v26, ptr %sum0.p.2.8
  %v27 = getelementptr i8, ptr %v15, i64 48
  %v28 = load <4 x float>, ptr %v27, align 4
  %v29 = load <4 x float>, ptr %sum0.p.3.9
  %v30 = fadd <4 x float> %v29, %v28
  store <4 x float> %v30, ptr %sum0.p.3.9
  br label %next.11
next.11:
  %r0.1.o.11.next = add nsw i64 %r0.1.o.11, 1
  %v31 = icmp slt i64 %r0.1.o.11.next, 4
  br i1 %v31, label %loop.11, label %done.11, !prof !3, !llvm.loop !2
done.11:
  %v34 = getelementptr float, ptr %v3, i64 %v10
  %v35 = call ptr @llvm.strip.invariant.group.p0(ptr %v34)
  br label %loop.32
loop.32:
  %r0.1.o.32 = phi i64 [ 4, %done.11 ], [ %r0.1.o.32.next, %next.32 ]
  %v33 = mul i64 %r0.1.o.32, 16
  %v36 = getelementptr float, ptr %v35, i64 %v33
  %v37 = load <4 x float>, ptr %v36, align 4
  %v38 = load <4 x float>, ptr %sum0.p.0.6
  %v39 = fadd <4 x float> %v38, %v37
  store <4 x float> %v39, ptr %sum0.p.0.6
  %v40 = getelementptr i8, ptr %v36, i64 16
  %v41 = load <4 x float>, ptr %v40, align 4
  %v42 = load <4 x float>, ptr %sum0.p.1.7
  %v43 = fadd <4 x float> %v42, %v41
  store <4 x float> %v43, ptr %sum0.p.1.7
  %v44 = getelementptr i8, ptr %v36, i64 32
  %v45 = load <4 x float>, ptr %v44, align 4
  %v46 = load <4 x float>, ptr %sum0.p.2.8
  %v47 = fadd <4 x float> %v46, %v45
  store <4 x float> %v47, ptr %sum0.p.2.8
  %v48 = trunc i64 %v33 to i32
  %v49 = insertelement <4 x i32> poison, i32 %v48, i64 0
  %v50 = shufflevector <4 x i32> %v49, <4 x i32> poison, <4 x i32> zeroinitializer
  %v51 = add <4 x i32> %v50, %v4
  %v52 = icmp slt <4 x i32> %v51, splat (i32 65)
  %v53 = getelementptr i8, ptr %v36, i64 48
  %v54 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v53, i32 4, <4 x i1> %v52, <4 x float> zeroinitializer)
  %v55 = load <4 x float>, ptr %sum0.p.3.9
  %v56 = fadd <4 x float> %v55, %v54
  store <4 x float> %v56, ptr %sum0.p.3.9
  br label %next.32
next.32:
  %r0.1.o.32.next = add nsw i64 %r0.1.o.32, 1
  %v57 = icmp slt i64 %r0.1.o.32.next, 5
  br i1 %v57, label %loop.32, label %done.32, !prof !5, !llvm.loop !4
done.32:
  %v58 = load <4 x float>, ptr %sum0.p.0.6
  %v59 = load <4 x float>, ptr %sum0.p.1.7
  %v60 = load <4 x float>, ptr %sum0.p.2.8
  %v61 = load <4 x float>, ptr %sum0.p.3.9
  store float 0x0000000000000000, ptr %sum0.4.62
  %v63 = fadd <4 x float> %v58, %v59
  %v64 = fadd <4 x float> %v60, %v61
  %v65 = fadd <4 x float> %v63, %v64
  %v66 = shufflevector <4 x float> %v65, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v67 = shufflevector <4 x float> %v65, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v68 = fadd <2 x float> %v66, %v67
  %v69 = extractelement <2 x float> %v68, i64 0
  %v70 = extractelement <2 x float> %v68, i64 1
  %v71 = fadd float %v69, %v70
  store float %v71, ptr %sum0.4.62
  %v72 = load float, ptr %sum0.4.62
  %v73 = getelementptr float, ptr %v1, i64 %i0.0.5
  store float %v72, ptr %v73, align 4
  br label %next.5
next.5:
  %i0.0.5.next = add nsw i64 %i0.0.5, 1
  %v74 = icmp slt i64 %i0.0.5.next, 9
  br i1 %v74, label %loop.5, label %done.5, !prof !7, !llvm.loop !6
done.5:
  ret void
}
define i64 @"sum_rows_neon.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)
declare ptr @llvm.strip.invariant.group.p0(ptr)
attributes #0 = { nounwind "prefer-vector-width"="128" "min-legal-vector-width"="128" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = !{!"branch_weights", i32 3, i32 1}
!4 = distinct !{!4, !0, !1}
!5 = !{!"branch_weights", i32 0, i32 1}
!6 = distinct !{!6, !0, !1}
!7 = !{!"branch_weights", i32 8, i32 1}
