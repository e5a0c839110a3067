//! The CUDA runtime: only the functions that static constructors of code compiled by nvcc call when a program starts. Kernels
//! linked into a program (candle's mixture-of-experts and quantized ones) cannot be launched.

/// Registers linked-in device code.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_image: u64) -> u64 {
    1
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

/// Unregisters linked-in device code.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_handle: u64) {}

/// Registers a linked-in kernel. The arguments are not used, and C lets a callee ignore them.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFunction(_handle: u64) {}

/// Registers a linked-in variable, in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterVar(_handle: u64) {}

/// Returns the linked-in module's state; its name is not used.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_handle: u64) -> u8 {
    1
}
