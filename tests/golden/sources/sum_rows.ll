define void @"sum_rows"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum0.p.0.6 = alloca <16 x float>
  %sum0.p.1.7 = alloca <16 x float>
  %sum0.p.2.8 = alloca <16 x float>
  %sum0.p.3.9 = alloca <16 x float>
  %sum0.4.69 = alloca float
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
  br label %loop.11
loop.11:
  %r0.1.o.11 = phi i64 [ 0, %loop.5 ], [ %r0.1.o.11.next, %next.11 ]
  %v12 = mul i64 %r0.1.o.11, 64
  %v13 = add i64 %v10, %v12
  %v14 = getelementptr float, ptr %v3, i64 %v13
  %v15 = load <16 x float>, ptr %v14, align 4
  %v16 = load <16 x float>, ptr %sum0.p.0.6
  %v17 = fadd <16 x float> %v16, %v15
  store <16 x float> %v17, ptr %sum0.p.0.6
  %v18 = add i64 %v13, 16
  %v19 = getelementptr float, ptr %v3, i64 %v18
  %v20 = load <16 x float>, ptr %v19, align 4
  %v21 = load <16 x float>, ptr %sum0.p.1.7
  %v22 = fadd <16 x float> %v21, %v20
  store <16 x float> %v22, ptr %sum0.p.1.7
  %v23 = add i64 %v13, 32
  %v24 = getelementptr float, ptr %v3, i64 %v23
  %v25 = load <16 x float>, ptr %v24, align 4
  %v26 = load <16 x float>, ptr %sum0.p.2.8
  %v27 = fadd <16 x float> %v26, %v25
  store <16 x float> %v27, ptr %sum0.p.2.8
  %v28 = add i64 %v13, 48
  %v29 = getelementptr float, ptr %v3, i64 %v28
  %v30 = load <16 x float>, ptr %v29, align 4
  %v31 = load <16 x float>, ptr %sum0.p.3.9
  %v32 = fadd <16 x float> %v31, %v30
  store <16 x float> %v32, ptr %sum0.p.3.9
  br label %next.11
next.11:
  %r0.1.o.11.next = add nsw i64 %r0.1.o.11, 1
  %v33 = icmp slt i64 %r0.1.o.11.next, 1
  br i1 %v33, label %loop.11, label %done.11, !llvm.loop !2
done.11:
  br label %loop.34
loop.34:
  %r0.1.o.34 = phi i64 [ 1, %done.11 ], [ %r0.1.o.34.next, %next.34 ]
  %v35 = mul i64 %r0.1.o.34, 64
  %v36 = trunc i64 %v35 to i32
  %v37 = insertelement <16 x i32> poison, i32 %v36, i64 0
  %v38 = shufflevector <16 x i32> %v37, <16 x i32> poison, <16 x i32> zeroinitializer
  %v39 = add <16 x i32> %v38, %v4
  %v40 = icmp slt <16 x i32> %v39, splat (i32 77)
  %v41 = add i64 %v10, %v35
  %v42 = getelementptr float, ptr %v3, i64 %v41
  %v43 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v42, i32 4, <16 x i1> %v40, <16 x float> zeroinitializer)
  %v44 = load <16 x float>, ptr %sum0.p.0.6
  %v45 = fadd <16 x float> %v44, %v43
  store <16 x float> %v45, ptr %sum0.p.0.6
  %v46 = icmp slt i64 %r0.1.o.34, 1
  %v47 = insertelement <16 x i1> poison, i1 %v46, i64 0
  %v48 = shufflevector <16 x i1> %v47, <16 x i1> poison, <16 x i32> zeroinitializer
  %v49 = add i64 %v41, 16
  %v50 = getelementptr float, ptr %v3, i64 %v49
  %v51 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v50, i32 4, <16 x i1> %v48, <16 x float> zeroinitializer)
  %v52 = load <16 x float>, ptr %sum0.p.1.7
  %v53 = fadd <16 x float> %v52, %v51
  store <16 x float> %v53, ptr %sum0.p.1.7
  %v54 = add i64 %v41, 32
  %v55 = getelementptr float, ptr %v3, i64 %v54
  %v56 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v55, i32 4, <16 x i1> %v48, <16 x float> zeroinitializer)
  %v57 = load <16 x float>, ptr %sum0.p.2.8
  %v58 = fadd <16 x float> %v57, %v56
  store <16 x float> %v58, ptr %sum0.p.2.8
  %v59 = add i64 %v41, 48
  %v60 = getelementptr float, ptr %v3, i64 %v59
  %v61 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v60, i32 4, <16 x i1> %v48, <16 x float> zeroinitializer)
  %v62 = load <16 x float>, ptr %sum0.p.3.9
  %v63 = fadd <16 x float> %v62, %v61
  store <16 x float> %v63, ptr %sum0.p.3.9
  br label %next.34
next.34:
  %r0.1.o.34.next = add nsw i64 %r0.1.o.34, 1
  %v64 = icmp slt i64 %r0.1.o.34.next, 2
  br i1 %v64, label %loop.34, label %done.34, !llvm.loop !3
done.34:
  %v65 = load <16 x float>, ptr %sum0.p.0.6
  %v66 = load <16 x float>, ptr %sum0.p.1.7
  %v67 = load <16 x float>, ptr %sum0.p.2.8
  %v68 = load <16 x float>, ptr %sum0.p.3.9
  store float 0x0000000000000000, ptr %sum0.4.69
  %v70 = fadd <16 x float> %v65, %v66
  %v71 = fadd <16 x float> %v67, %v68
  %v72 = fadd <16 x float> %v70, %v71
  %v73 = shufflevector <16 x float> %v72, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v74 = shufflevector <16 x float> %v72, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v75 = fadd <8 x float> %v73, %v74
  %v76 = shufflevector <8 x float> %v75, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v77 = shufflevector <8 x float> %v75, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v78 = fadd <4 x float> %v76, %v77
  %v79 = shufflevector <4 x float> %v78, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v80 = shufflevector <4 x float> %v78, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v81 = fadd <2 x float> %v79, %v80
  %v82 = extractelement <2 x float> %v81, i64 0
  %v83 = extractelement <2 x float> %v81, i64 1
  %v84 = fadd float %v82, %v83
  store float %v84, ptr %sum0.4.69
  %v85 = load float, ptr %sum0.4.69
  %v86 = getelementptr float, ptr %v1, i64 %i0.0.5
  store float %v85, ptr %v86, align 4
  br label %next.5
next.5:
  %i0.0.5.next = add nsw i64 %i0.0.5, 1
  %v87 = icmp slt i64 %i0.0.5.next, 9
  br i1 %v87, label %loop.5, label %done.5, !llvm.loop !4
done.5:
  ret void
}
define i64 @"sum_rows.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = distinct !{!3, !0, !1}
!4 = distinct !{!4, !0, !1}
