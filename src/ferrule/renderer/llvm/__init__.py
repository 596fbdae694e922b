"""Programs as LLVM IR."""
