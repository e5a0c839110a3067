//! The entry points of matrix products, each of which describes a [`Gemm`].

use super::gemm::{Gemm, Operand, Place};
use super::handle::answer;
use super::number::DataType::{self, F16, F32, F64};

/// Declares entry points for one element type, which is also the type of the scalars.
macro_rules! typed {
    (single: $($(#[$doc:meta])* fn $name:ident($kind:expr);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            handle: u64, op_a: u32, op_b: u32, m: i32, n: i32, k: i32, alpha: u64,
            a: u64, lda: i32, b: u64, ldb: i32, beta: u64, c: u64, ldc: i32,
        ) -> u32 {
            let operand = |start, leading, operation| Operand { place: Place::Strided(start, 0), kind: $kind, leading, operation };
            let gemm = Gemm {
                handle, name: stringify!($name), m, n, k, alpha, a: operand(a, lda, op_a), b: operand(b, ldb, op_b),
                beta, c: operand(c, ldc, 0), batch: 1, scalars: $kind,
            };
            // SAFETY: the caller passes readable scalars.
            answer(|| unsafe { gemm.run() })
        }
    )*};
    (strided: $($(#[$doc:meta])* fn $name:ident($kind:expr);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            handle: u64, op_a: u32, op_b: u32, m: i32, n: i32, k: i32, alpha: u64,
            a: u64, lda: i32, stride_a: i64, b: u64, ldb: i32, stride_b: i64,
            beta: u64, c: u64, ldc: i32, stride_c: i64, batch: i32,
        ) -> u32 {
            let operand = |start, stride, leading, operation| {
                Operand { place: Place::Strided(start, stride), kind: $kind, leading, operation }
            };
            let gemm = Gemm {
                handle, name: stringify!($name), m, n, k, alpha, a: operand(a, stride_a, lda, op_a),
                b: operand(b, stride_b, ldb, op_b), beta, c: operand(c, stride_c, ldc, 0), batch, scalars: $kind,
            };
            // SAFETY: the caller passes readable scalars.
            answer(|| unsafe { gemm.run() })
        }
    )*};
    (listed: $($(#[$doc:meta])* fn $name:ident($kind:expr);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            handle: u64, op_a: u32, op_b: u32, m: i32, n: i32, k: i32, alpha: u64,
            a: u64, lda: i32, b: u64, ldb: i32, beta: u64, c: u64, ldc: i32, batch: i32,
        ) -> u32 {
            let operand = |list, leading, operation| Operand { place: Place::Listed(list), kind: $kind, leading, operation };
            let gemm = Gemm {
                handle, name: stringify!($name), m, n, k, alpha, a: operand(a, lda, op_a), b: operand(b, ldb, op_b),
                beta, c: operand(c, ldc, 0), batch, scalars: $kind,
            };
            // SAFETY: the caller passes readable scalars and lists of pointers.
            answer(|| unsafe { gemm.run() })
        }
    )*};
}

typed! { single:
    /// One product.
    fn cublasSgemm_v2(F32);
    /// One product.
    fn cublasDgemm_v2(F64);
    /// One product; sums are computed in `f32`.
    fn cublasHgemm(F16);
}

typed! { strided:
    /// Strided products.
    fn cublasSgemmStridedBatched(F32);
    /// Strided products.
    fn cublasDgemmStridedBatched(F64);
    /// Strided products; sums are computed in `f32`.
    fn cublasHgemmStridedBatched(F16);
}

typed! { listed:
    /// Products at listed addresses.
    fn cublasSgemmBatched(F32);
    /// Products at listed addresses.
    fn cublasDgemmBatched(F64);
}

/// One product, with types chosen by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmEx(
    handle: u64,
    op_a: u32,
    op_b: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: u64,
    a: u64,
    kind_a: u32,
    lda: i32,
    b: u64,
    kind_b: u32,
    ldb: i32,
    beta: u64,
    c: u64,
    kind_c: u32,
    ldc: i32,
    compute: u32,
    _algorithm: i32,
) -> u32 {
    let operand = |start, kind, leading, operation| Operand {
        place: Place::Strided(start, 0),
        kind: DataType::decode(kind),
        leading,
        operation,
    };
    let gemm = Gemm {
        handle,
        name: "cublasGemmEx",
        m,
        n,
        k,
        alpha,
        a: operand(a, kind_a, lda, op_a),
        b: operand(b, kind_b, ldb, op_b),
        beta,
        c: operand(c, kind_c, ldc, 0),
        batch: 1,
        scalars: DataType::of_compute_type(compute),
    };
    // SAFETY: the caller passes readable scalars.
    answer(|| unsafe { gemm.run() })
}

/// Strided products, with types chosen by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: u64,
    op_a: u32,
    op_b: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: u64,
    a: u64,
    kind_a: u32,
    lda: i32,
    stride_a: i64,
    b: u64,
    kind_b: u32,
    ldb: i32,
    stride_b: i64,
    beta: u64,
    c: u64,
    kind_c: u32,
    ldc: i32,
    stride_c: i64,
    batch: i32,
    compute: u32,
    _algorithm: i32,
) -> u32 {
    let operand = |start, stride, kind, leading, operation| Operand {
        place: Place::Strided(start, stride),
        kind: DataType::decode(kind),
        leading,
        operation,
    };
    let gemm = Gemm {
        handle,
        name: "cublasGemmStridedBatchedEx",
        m,
        n,
        k,
        alpha,
        a: operand(a, stride_a, kind_a, lda, op_a),
        b: operand(b, stride_b, kind_b, ldb, op_b),
        beta,
        c: operand(c, stride_c, kind_c, ldc, 0),
        batch,
        scalars: DataType::of_compute_type(compute),
    };
    // SAFETY: the caller passes readable scalars.
    answer(|| unsafe { gemm.run() })
}

/// Products at listed addresses, with types chosen by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmBatchedEx(
    handle: u64,
    op_a: u32,
    op_b: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: u64,
    a: u64,
    kind_a: u32,
    lda: i32,
    b: u64,
    kind_b: u32,
    ldb: i32,
    beta: u64,
    c: u64,
    kind_c: u32,
    ldc: i32,
    batch: i32,
    compute: u32,
    _algorithm: i32,
) -> u32 {
    let operand = |list, kind, leading, operation| Operand {
        place: Place::Listed(list),
        kind: DataType::decode(kind),
        leading,
        operation,
    };
    let gemm = Gemm {
        handle,
        name: "cublasGemmBatchedEx",
        m,
        n,
        k,
        alpha,
        a: operand(a, kind_a, lda, op_a),
        b: operand(b, kind_b, ldb, op_b),
        beta,
        c: operand(c, kind_c, ldc, 0),
        batch,
        scalars: DataType::of_compute_type(compute),
    };
    // SAFETY: the caller passes readable scalars and lists of pointers.
    answer(|| unsafe { gemm.run() })
}
