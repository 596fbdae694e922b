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
  %v12 = load <4 x float>, ptr %sum0.p.0.6
  %v13 = mul i64 %r0.1.o.11, 16
  %v14 = add i64 %v10, %v13
  %v15 = getelementptr float, ptr %v3, i64 %v14
  %v16 = load <4 x float>, ptr %v15, align 4
  %v17 = fadd <4 x float> %v12, %v16
  store <4 x float> %v17, ptr %sum0.p.0.6
  %v18 = load <4 x float>, ptr %sum0.p.1.7
  %v19 = add i64 %v14, 4
  %v20 = getelementptr float, ptr %v3, i64 %v19
  %v21 = load <4 x float>, ptr %v20, align 4
  %v22 = fadd <4 x float> %v18, %v21
  store <4 x float> %v22, ptr %sum0.p.1.7
  %v23 = load <4 x float>, ptr %sum0.p.2.8
  %v24 = add i64 %v14, 8
  %v25 = getelementptr float, ptr %v3, i64 %v24
  %v26 = load <4 x float>, ptr %v25, align 4
  %v27 = fadd <4 x float> %v23, %v26
  store <4 x float> %v27, ptr %sum0.p.2.8
  %v28 = load <4 x float>, ptr %sum0.p.3.9
  %v29 = add i64 %v14, 12
  %v30 = getelementptr float, ptr %v3, i64 %v29
  %v31 = load <4 x float>, ptr %v30, align 4
  %v32 = fadd <4 x float> %v28, %v31
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
  %v35 = load <4 x float>, ptr %sum0.p.0.6
  %v36 = mul i64 %r0.1.o.34, 16
  %v37 = add i64 %v10, %v36
  %v38 = getelementptr float, ptr %v3, i64 %v37
  %v39 = load <4 x float>, ptr %v38, align 4
  %v40 = fadd <4 x float> %v35, %v39
  store <4 x float> %v40, ptr %sum0.p.0.6
  %v41 = load <4 x float>, ptr %sum0.p.1.7
  %v42 = add i64 %v37, 4
  %v43 = getelementptr float, ptr %v3, i64 %v42
  %v44 = load <4 x float>, ptr %v43, align 4
  %v45 = fadd <4 x float> %v41, %v44
  store <4 x float> %v45, ptr %sum0.p.1.7
  %v46 = load <4 x float>, ptr %sum0.p.2.8
  %v47 = add i64 %v37, 8
  %v48 = getelementptr float, ptr %v3, i64 %v47
  %v49 = load <4 x float>, ptr %v48, align 4
  %v50 = fadd <4 x float> %v46, %v49
  store <4 x float> %v50, ptr %sum0.p.2.8
  %v51 = load <4 x float>, ptr %sum0.p.3.9
  %v52 = add i64 %v37, 12
  %v53 = trunc i64 %v36 to i32
  %v54 = insertelement <4 x i32> poison, i32 %v53, i64 0
  %v55 = shufflevector <4 x i32> %v54, <4 x i32> poison, <4 x i32> zeroinitializer
  %v56 = add <4 x i32> %v55, %v4
  %v57 = icmp slt <4 x i32> %v56, splat (i32 65)
  %v58 = getelementptr float, ptr %v3, i64 %v52
  %v59 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v58, i32 4, <4 x i1> %v57, <4 x float> zeroinitializer)
  %v60 = fadd <4 x float> %v51, %v59
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
  %v76 = load float, ptr %sum0.4.66
  %v77 = fadd float %v76, %v75
  store float %v77, ptr %sum0.4.66
  %v78 = load float, ptr %sum0.4.66
  %v79 = getelementptr float, ptr %v1, i64 %i0.0.5
  store float %v78, ptr %v79, align 4
  br label %next.5
next.5:
  %i0.0.5.next = add nsw i64 %i0.0.5, 1
  %v80 = icmp slt i64 %i0.0.5.next, 9
  br i1 %v80, label %loop.5, label %done.5, !llvm.loop !4
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
