//! The entry points of vector operations.

use super::handle::answer;
use super::number::DataType;
use super::vector::{Gemv, Vector, asum, axpy, gemv, scal};

/// Declares the entry points for one type.
macro_rules! typed {
    ($kind:ident: fn $gemv:ident(), fn $axpy:ident(), fn $scal:ident(), fn $asum:ident()) => {
        /// A matrix times a vector; sums are computed in `f64`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $gemv(
            handle: u64,
            operation: u32,
            m: i32,
            n: i32,
            alpha: u64,
            a: u64,
            lda: i32,
            x: u64,
            step_x: i32,
            beta: u64,
            y: u64,
            step_y: i32,
        ) -> u32 {
            let call = Gemv {
                operation,
                matrix: (a, lda),
                m,
                n,
                alpha,
                beta,
            };
            // SAFETY: the caller passes readable scalars.
            answer(|| unsafe { gemv(handle, call, (x, step_x), (y, step_y), DataType::$kind) })
        }

        /// Adds a multiple of a vector to another.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $axpy(
            handle: u64,
            length: i32,
            alpha: u64,
            x: u64,
            step_x: i32,
            y: u64,
            step_y: i32,
        ) -> u32 {
            let kind = DataType::$kind;
            let x = Vector {
                address: x,
                kind,
                length,
                step: step_x,
            };
            let y = Vector {
                address: y,
                kind,
                length,
                step: step_y,
            };
            // SAFETY: the caller passes a readable scalar.
            answer(|| unsafe { axpy(handle, (alpha, kind), x, y) })
        }

        /// Scales a vector.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $scal(
            handle: u64,
            length: i32,
            alpha: u64,
            x: u64,
            step: i32,
        ) -> u32 {
            let kind = DataType::$kind;
            // SAFETY: the caller passes a readable scalar.
            answer(|| unsafe {
                scal(
                    handle,
                    (alpha, kind),
                    Vector {
                        address: x,
                        kind,
                        length,
                        step,
                    },
                )
            })
        }

        /// The sum of absolute values, computed in `f64`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $asum(
            handle: u64,
            length: i32,
            x: u64,
            step: i32,
            to: u64,
        ) -> u32 {
            let kind = DataType::$kind;
            // SAFETY: the caller passes a place for the sum.
            answer(|| unsafe {
                asum(
                    handle,
                    Vector {
                        address: x,
                        kind,
                        length,
                        step,
                    },
                    to,
                )
            })
        }
    };
}

typed! { F32: fn cublasSgemv_v2(), fn cublasSaxpy_v2(), fn cublasSscal_v2(), fn cublasSasum_v2() }
typed! { F64: fn cublasDgemv_v2(), fn cublasDaxpy_v2(), fn cublasDscal_v2(), fn cublasDasum_v2() }

/// Adds a multiple of a vector to another, with types chosen by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasAxpyEx(
    handle: u64,
    length: i32,
    alpha: u64,
    alpha_kind: u32,
    x: u64,
    x_kind: u32,
    step_x: i32,
    y: u64,
    y_kind: u32,
    step_y: i32,
    _execution: u32,
) -> u32 {
    let x = Vector {
        address: x,
        kind: DataType::decode(x_kind),
        length,
        step: step_x,
    };
    let y = Vector {
        address: y,
        kind: DataType::decode(y_kind),
        length,
        step: step_y,
    };
    // SAFETY: the caller passes a readable scalar.
    answer(|| unsafe { axpy(handle, (alpha, DataType::decode(alpha_kind)), x, y) })
}

/// Scales a vector, with types chosen by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasScalEx(
    handle: u64,
    length: i32,
    alpha: u64,
    alpha_kind: u32,
    x: u64,
    x_kind: u32,
    step: i32,
    _execution: u32,
) -> u32 {
    let x = Vector {
        address: x,
        kind: DataType::decode(x_kind),
        length,
        step,
    };
    // SAFETY: the caller passes a readable scalar.
    answer(|| unsafe { scal(handle, (alpha, DataType::decode(alpha_kind)), x) })
}
