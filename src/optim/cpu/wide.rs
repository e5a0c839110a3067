/// Compiles the loop in `work` also for AVX2, which runs if the machine has it. FMA stays off, so that the bits are the same.
#[inline(always)]
pub fn wide(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(work: impl FnOnce()) {
            work();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, the only feature that the function enables.
            return unsafe { wide(work) };
        }
    }
    work();
}
