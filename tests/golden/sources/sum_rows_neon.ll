define void @"sum_rows_neon"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %sum0.p.0.6 = alloca <4 x float>
  %sum0.p.1.7 = alloca <4 x float>
  %sum0.p.2.8 = alloca <4 x float>
  %sum0.p.3.9 = alloca <4 x float>
  %sum0.4.66 = alloca float
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
  br label %loop.11
loop.11:
  %r0.1.o.11 = phi i64 [ 0, %loop.5 ], [ %r0.1.o.11.next, %next.11 ]
  %v12 = mul i64 %r0.1.o.11, 16
  %v13 = add i64 %v10, %v12
  %v14 = getelementptr float, ptr %v3, i64 %v13
  %v15 = load <4 x float>, ptr %v14, align 4
  %v16 = load <4 x float>, ptr %sum0.p.0.6
  %v17 = fadd <4 x float> %v16, %v15
  store <4 x float> %v17, ptr %sum0.p.0.6
  %v18 = add i64 %v13, 4
  %v19 = getelementptr float, ptr %v3, i64 %v18
  %v20 = load <4 x float>, ptr %v19, align 4
  %v21 = load <4 x float>, ptr %sum0.p.1.7
  %v22 = fadd <4 x float> %v21, %v20
  store <4 x float> %v22, ptr %sum0.p.1.7
  %v23 = add i64 %v13, 8
  %v24 = getelementptr float, ptr %v3, i64 %v23
  %v25 = load <4 x float>, ptr %v24, align 4
  %v26 = load <4 x float>, ptr %sum0.p.2.8
  %v27 = fadd <4 x float> %v26, %v25
  store <4 x float> %v27, ptr %sum0.p.2.8
  %v28 = add i64 %v13, 12
  %v29 = getelementptr float, ptr %v3, i64 %v28
  %v30 = load <4 x float>, ptr %v29, align 4
  %v31 = load <4 x float>, ptr %sum0.p.3.9
  %v32 = fadd <4 x float> %v31, %v30
  store <4 x float> %v32, ptr %sum0.p.3.9
  br label %next.11
next.11:
  %r0.1.o.11.next = add nsw i64 %r0.1.o.11, 1
  %v33 = icmp slt i64 %r0.1.o.11.next, 4
  br i1 %v33, label %loop.11, label %done.11, !llvm.loop !2
done.11:
  br label %loop.34
loop.34:
  %r0.1.o.34 = phi i64 [ 4, %done.11 ], [ %r0.1.o.34.next, %next.34 ]
  %v35 = mul i64 %r0.1.o.34, 16
  %v36 = add i64 %v10, %v35
  %v37 = getelementptr float, ptr %v3, i64 %v36
  %v38 = load <4 x float>, ptr %v37, align 4
  %v39 = load <4 x float>, ptr %sum0.p.0.6
  %v40 = fadd <4 x float> %v39, %v38
  store <4 x float> %v40, ptr %sum0.p.0.6
  %v41 = add i64 %v36, 4
  %v42 = getelementptr float, ptr %v3, i64 %v41
  %v43 = load <4 x float>, ptr %v42, align 4
  %v44 = load <4 x float>, ptr %sum0.p.1.7
  %v45 = fadd <4 x float> %v44, %v43
  store <4 x float> %v45, ptr %sum0.p.1.7
  %v46 = add i64 %v36, 8
  %v47 = getelementptr float, ptr %v3, i64 %v46
  %v48 = load <4 x float>, ptr %v47, align 4
  %v49 = load <4 x float>, ptr %sum0.p.2.8
  %v50 = fadd <4 x float> %v49, %v48
  store <4 x float> %v50, ptr %sum0.p.2.8
  %v51 = trunc i64 %v35 to i32
  %v52 = insertelement <4 x i32> poison, i32 %v51, i64 0
  %v53 = shufflevector <4 x i32> %v52, <4 x i32> poison, <4 x i32> zeroinitializer
  %v54 = add <4 x i32> %v53, %v4
  %v55 = icmp slt <4 x i32> %v54, splat (i32 65)
  %v56 = add i64 %v36, 12
  %v57 = getelementptr float, ptr %v3, i64 %v56
  %v58 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v57, i32 4, <4 x i1> %v55, <4 x float> zeroinitializer)
  %v59 = load <4 x float>, ptr %sum0.p.3.9
  %v60 = fadd <4 x float> %v59, %v58
  store <4 x float> %v60, ptr %sum0.p.3.9
  br label %next.34
next.34:
  %r0.1.o.34.next = add nsw i64 %r0.1.o.34, 1
  %v61 = icmp slt i64 %r0.1.o.34.next, 5
  br i1 %v61, label %loop.34, label %done.34, !llvm.loop !3
done.34:
  %v62 = load <4 x float>, ptr %sum0.p.0.6
  %v63 = load <4 x float>, ptr %sum0.p.1.7
  %v64 = load <4 x float>, ptr %sum0.p.2.8
  %v65 = load <4 x float>, ptr %sum0.p.3.9
  store float 0x0000000000000000, ptr %sum0.4.66
  %v67 = fadd <4 x float> %v62, %v63
  %v68 = fadd <4 x float> %v64, %v65
  %v69 = fadd <4 x float> %v67, %v68
  %v70 = shufflevector <4 x float> %v69, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v71 = shufflevector <4 x float> %v69, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v72 = fadd <2 x float> %v70, %v71
  %v73 = extractelement <2 x float> %v72, i64 0
  %v74 = extractelement <2 x float> %v72, i64 1
  %v75 = fadd float %v73, %v74
  store float %v75, ptr %sum0.4.66
  %v76 = load float, ptr %sum0.4.66
  %v77 = getelementptr float, ptr %v1, i64 %i0.0.5
  store float %v76, ptr %v77, align 4
  br label %next.5
next.5:
  %i0.0.5.next = add nsw i64 %i0.0.5, 1
  %v78 = icmp slt i64 %i0.0.5.next, 9
  br i1 %v78, label %loop.5, label %done.5, !llvm.loop !4
done.5:
  ret void
}
define i64 @"sum_rows_neon.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)
attributes #0 = { nounwind "prefer-vector-width"="128" "min-legal-vector-width"="128" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
!2 = distinct !{!2, !0, !1}
!3 = distinct !{!3, !0, !1}
!4 = distinct !{!4, !0, !1}
