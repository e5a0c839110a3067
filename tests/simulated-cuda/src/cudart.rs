//! The CUDA runtime: only what static constructors of code made by nvcc call when a program starts. Kernels that are
//! linked into a program (candle's mixture-of-experts and quantized ones) cannot be launched.

/// Registers linked-in device code.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_image: u64) -> u64 {
    1
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

/// Takes linked-in device code away.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_handle: u64) {}

/// Registers a linked-in kernel. The arguments are of no use here, and C lets a callee ignore them.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFunction(_handle: u64) {}

/// Registers a linked-in variable, likewise.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterVar(_handle: u64) {}

/// Says that the runtime's linked-in module is the one that was built: its name is of no use here.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_handle: u64) -> u8 {
    1
}
