//! The functions of NCCL that the engine calls, as its header declares them since version 2.14.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

/// `ncclResult_t`.
pub(super) type Code = c_uint;
pub(super) const SUCCESS: Code = 0;
pub(super) const UNHANDLED_CUDA_ERROR: Code = 1;
pub(super) const SYSTEM_ERROR: Code = 2;
pub(super) const REMOTE_ERROR: Code = 6;
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclDataType_t`.
pub(super) const UINT8: c_uint = 1;
pub(super) const FLOAT32: c_uint = 7;
pub(super) const FLOAT64: c_uint = 8;
pub(super) const BFLOAT16: c_uint = 9;

/// `ncclRedOp_t`.
pub(super) const SUM: c_uint = 0;

/// `ncclComm_t` and `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type Comm = *mut c_void;
pub(super) type Stream = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t` of version 2.14. Later versions take the fields that they have added from their defaults.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    pub(super) const NON_BLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: 21400,
        blocking: 0,
    };
}

const _: () = assert!(size_of::<Config>() == 24 && size_of::<UniqueId>() == 128);

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)+) => {
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl Functions {
            /// # Safety
            /// The library must be NCCL 2.14 or later, and stay loaded.
            pub(super) unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: NCCL's functions of these names have these signatures.
                unsafe {
                    Ok(Self { $($name: *library.get($symbol)?,)+ })
                }
            }
        }
    };
}

functions! {
    unique_id = b"ncclGetUniqueId\0": fn(*mut UniqueId) -> Code;
    init = b"ncclCommInitRankConfig\0": fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;
    async_error = b"ncclCommGetAsyncError\0": fn(Comm, *mut Code) -> Code;
    finalize = b"ncclCommFinalize\0": fn(Comm) -> Code;
    destroy = b"ncclCommDestroy\0": fn(Comm) -> Code;
    abort = b"ncclCommAbort\0": fn(Comm) -> Code;
    reduce_scatter = b"ncclReduceScatter\0":
        fn(*const c_void, *mut c_void, usize, c_uint, c_uint, Comm, Stream) -> Code;
    all_gather = b"ncclAllGather\0":
        fn(*const c_void, *mut c_void, usize, c_uint, Comm, Stream) -> Code;
    broadcast = b"ncclBroadcast\0":
        fn(*const c_void, *mut c_void, usize, c_uint, c_int, Comm, Stream) -> Code;
    error_string = b"ncclGetErrorString\0": fn(Code) -> *const c_char;
    last_error = b"ncclGetLastError\0": fn(Comm) -> *const c_char;
}
