define void @"pad_exp"(ptr %args, i64 %start, i64 %stop) #0 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = trunc <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15> to <16 x i32>
  %v5 = mul <16 x i32> %v4, splat (i32 -1)
  %v6 = icmp slt <16 x i32> %v5, splat (i32 -1)
  %v7 = icmp slt <16 x i32> %v4, splat (i32 7)
  %v8 = and <16 x i1> %v6, %v7
  %v9 = icmp slt <16 x i32> %v4, splat (i32 10)
  %v10 = and <16 x i1> %v9, %v6
  %v11 = and <16 x i1> %v10, %v7
  %v12 = getelementptr i8, ptr %v3, i64 -8
  %v13 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %v12, i32 4, <16 x i1> %v11, <16 x float> zeroinitializer)
  %v14 = fcmp olt <16 x float> %v13, splat (float 0xC05A6206C0000000)
  %v15 = select <16 x i1> %v14, <16 x float> splat (float 0xC05A6206C0000000), <16 x float> %v13
  %v16 = fcmp olt <16 x float> splat (float 0x40565A9F80000000), %v15
  %v17 = select <16 x i1> %v16, <16 x float> splat (float 0x40565A9F80000000), <16 x float> %v15
  %v18 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v17, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168001300000000))
  %v19 = fsub <16 x float> %v18, splat (float 0x4168001300000000)
  %v20 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v19, <16 x float> splat (float 0xBFE62E4300000000), <16 x float> %v17)
  %v21 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v19, <16 x float> splat (float 0x3E205C6100000000), <16 x float> %v20)
  %v22 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3DC6A4A9E0000000), <16 x float> %v21, <16 x float> splat (float 0x3DF12399E0000000))
  %v23 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v22, <16 x float> %v21, <16 x float> splat (float 0x3E15558B40000000))
  %v24 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v23, <16 x float> %v21, <16 x float> splat (float 0x3E35554920000000))
  %v25 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v24, <16 x float> %v21, <16 x float> splat (float 0x3E4FFFFFC0000000))
  %v26 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v25, <16 x float> %v21, <16 x float> splat (float 0x3E60000000000000))
  %v27 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v26, <16 x float> %v21, <16 x float> splat (float 0x3E60000000000000))
  %v28 = bitcast <16 x float> %v27 to <16 x i32>
  %v29 = bitcast <16 x float> %v18 to <16 x i32>
  %v30 = lshr <16 x i32> %v29, splat (i32 1)
  %v31 = shl <16 x i32> %v30, splat (i32 23)
  %v32 = add <16 x i32> %v28, %v31
  %v33 = bitcast <16 x i32> %v32 to <16 x float>
  %v34 = sub <16 x i32> %v29, %v30
  %v35 = shl <16 x i32> %v34, splat (i32 23)
  %v36 = bitcast <16 x i32> %v35 to <16 x float>
  %v37 = fsub <16 x float> %v21, %v21
  %v38 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v33, <16 x float> %v36, <16 x float> %v37)
  %v39 = select <16 x i1> %v8, <16 x float> %v38, <16 x float> splat (float 0x0000000000000000)
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v39, ptr %v1, i32 4, <16 x i1> %v9)
  ret void
}
define i64 @"pad_exp.extent"(ptr %args) #0 {
entry:
  ret i64 1
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" "no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }
