define void @"sum_rows"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum0.p.0.5 = alloca <16 x float>
  %sum0.p.1.6 = alloca <16 x float>
  %sum0.p.2.7 = alloca <16 x float>
  %sum0.p.3.8 = alloca <16 x float>
  %sum0.4.67 = alloca float
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  br label %loop.4
loop.4:
  %i0.0.4 = phi i64 [ 0, %entry ], [ %i0.0.4.next, %next.4 ]
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.0.5
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.1.6
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.2.7
  store <16 x float> splat (float 0x0000000000000000), ptr %sum0.p.3.8
  %v9 = mul i64 %i0.0.4, 77
  br label %loop.10
loop.10:
  %r0.1.o.10 = phi i64 [ 0, %loop.4 ], [ %r0.1.o.10.next, %next.10 ]
  %v11 = load <16 x float>, ptr %sum0.p.0.5
  %v12 = mul i64 %r0.1.o.10, 64
  %v13 = add i64 %v9, %v12
  %v14 = getelementptr float, ptr %v3, i64 %v13
  %v15 = load <16 x float>, ptr %v14, align 4
  %v16 = fadd <16 x float> %v11, %v15
  store <16 x float> %v16, ptr %sum0.p.0.5
  %v17 = load <16 x float>, ptr %sum0.p.1.6
  %v18 = add i64 %v13, 16
  %v19 = getelementptr float, ptr %v3, i64 %v18
  %v20 = load <16 x float>, ptr %v19, align 4
  %v21 = fadd <16 x float> %v17, %v20
  store <16 x float> %v21, ptr %sum0.p.1.6
  %v22 = load <16 x float>, ptr %sum0.p.2.7
  %v23 = add i64 %v13, 32
  %v24 = getelementptr float, ptr %v3, i64 %v23
  %v25 = load <16 x float>, ptr %v24, align 4
  %v26 = fadd <16 x float> %v22, %v25
  store <16 x float> %v26, ptr %sum0.p.2.7
  %v27 = load <16 x float>, ptr %sum0.p.3.8
  %v28 = add i64 %v13, 48
  %v29 = getelementptr float, ptr %v3, i64 %v28
  %v30 = load <16 x float>, ptr %v29, align 4
  %v31 = fadd <16 x float> %v27, %v30
  store <16 x float> %v31, ptr %sum0.p.3.8
  br label %next.10
next.10:
  %r0.1.o.10.next = add nsw i64 %r0.1.o.10, 1
  %v32 = icmp slt i64 %r0.1.o.10.next, 1
  br i1 %v32, label %loop.10, label %done.10, !llvm.loop !2
done.10:
  br label %loop.33
loop.33:
  %r0.1.o.33 = phi i64 [ 1, %done.10 ], [ %r0.1.o.33.next, %next.33 ]
  %v34 = load <16 x float>, ptr %sum0.p.0.5
  %v35 = mul i64 %r0.1.o.33, 64
  %v36 = insertelement <16 x i64> poison, i64 %v35, i64 0
  %v37 = shufflevector <16 x i64> %v36, <16 x i64> poison, <16 x i32> zeroinitializer
  %v38 = add <16 x i64> %v37, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  %v39 = icmp slt <16 x i64> %v38, splat (i64 77)
  %v40 = add i64 %v9, %v35
  %v41 = getelementptr float, ptr %v3, i64 %v40
  %v42 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v41, i32 4, <16 x i1> %v39, <16 x float> zeroinitializer)
  %v43 = fadd <16 x float> %v34, %v42
  store <16 x float> %v43, ptr %sum0.p.0.5
  %v44 = load <16 x float>, ptr %sum0.p.1.6
  %v45 = icmp slt <16 x i64> %v38, splat (i64 61)
  %v46 = add i64 %v40, 16
  %v47 = getelementptr float, ptr %v3, i64 %v46
  %v48 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v47, i32 4, <16 x i1> %v45, <16 x float> zeroinitializer)
  %v49 = fadd <16 x float> %v44, %v48
  store <16 x float> %v49, ptr %sum0.p.1.6
  %v50 = load <16 x float>, ptr %sum0.p.2.7
  %v51 = icmp slt <16 x i64> %v38, splat (i64 45)
  %v52 = add i64 %v40, 32
  %v53 = getelementptr float, ptr %v3, i64 %v52
  %v54 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v53, i32 4, <16 x i1> %v51, <16 x float> zeroinitializer)
  %v55 = fadd <16 x float> %v50, %v54
  store <16 x float> %v55, ptr %sum0.p.2.7
  %v56 = load <16 x float>, ptr %sum0.p.3.8
  %v57 = icmp slt <16 x i64> %v38, splat (i64 29)
  %v58 = add i64 %v40, 48
  %v59 = getelementptr float, ptr %v3, i64 %v58
  %v60 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v59, i32 4, <16 x i1> %v57, <16 x float> zeroinitializer)
  %v61 = fadd <16 x float> %v56, %v60
  store <16 x float> %v61, ptr %sum0.p.3.8
  br label %next.33
next.33:
  %r0.1.o.33.next = add nsw i64 %r0.1.o.33, 1
  %v62 = icmp slt i64 %r0.1.o.33.next, 2
  br i1 %v62, label %loop.33, label %done.33, !llvm.loop !3
done.33:
  %v63 = load <16 x float>, ptr %sum0.p.0.5
  %v64 = load <16 x float>, ptr %sum0.p.1.6
  %v65 = load <16 x float>, ptr %sum0.p.2.7
  %v66 = load <16 x float>, ptr %sum0.p.3.8
  store float 0x0000000000000000, ptr %sum0.4.67
  %v68 = fadd <16 x float> %v63, %v64
  %v69 = fadd <16 x float> %v65, %v66
  %v70 = fadd <16 x float> %v68, %v69
  %v71 = shufflevector <16 x float> %v70, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v72 = shufflevector <16 x float> %v70, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v73 = fadd <8 x float> %v71, %v72
  %v74 = shufflevector <8 x float> %v73, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v75 = shufflevector <8 x float> %v73, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v76 = fadd <4 x float> %v74, %v75
  %v77 = shufflevector <4 x float> %v76, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v78 = shufflevector <4 x float> %v76, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v79 = fadd <2 x float> %v77, %v78
  %v80 = extractelement <2 x float> %v79, i64 0
  %v81 = extractelement <2 x float> %v79, i64 1
  %v82 = fadd float %v80, %v81
  %v83 = load float, ptr %sum0.4.67
  %v84 = fadd float %v83, %v82
  store float %v84, ptr %sum0.4.67
  %v85 = load float, ptr %sum0.4.67
  %v86 = getelementptr float, ptr %v1, i64 %i0.0.4
  store float %v85, ptr %v86, align 4
  br label %next.4
next.4:
  %i0.0.4.next = add nsw i64 %i0.0.4, 1
  %v87 = icmp slt i64 %i0.0.4.next, 9
  br i1 %v87, label %loop.4, label %done.4, !llvm.loop !4
done.4:
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
