//! Reports a program's steps, phases and layers to the simulated driver, which attributes memory to them for `headroom dry-run`. With any other
//! driver these functions do nothing.

use crate::batch::Task;
use crate::error::Phase;

/// A step or a phase in progress; it ends when this is dropped.
#[must_use]
pub(crate) struct Mark(#[allow(dead_code, reason = "held for its destructor")] driver::Entered);

/// Begins a micro-batch of so many samples, or an update with 0.
#[inline]
pub(crate) fn work((task, step, samples): (Task, u64, usize)) -> Mark {
    // Evaluation takes less for each sample, and says nothing of micro-batches.
    let samples = match task {
        Task::Evaluation => 0,
        _ => samples,
    };
    Mark(driver::enter(driver::WORK, samples as u64, || match task {
        Task::Training => format!("step {}", step + 1),
        task => format!("{task} {}", step + 1),
    }))
}

/// Begins a phase.
#[inline]
pub(crate) fn phase(phase: Phase) -> Mark {
    Mark(driver::enter(driver::PHASE, 0, || phase.to_string()))
}

/// Says what recomputing its regions would have saved the micro-batch in progress, in bytes.
#[inline]
pub(crate) fn could_save(bytes: impl FnOnce() -> Option<u64>) {
    driver::could_save(bytes);
}

/// Says in which layers this thread is.
#[cfg(feature = "layers")]
#[inline]
pub(crate) fn layers(path: impl FnOnce() -> String) {
    driver::layers(path);
}

#[cfg(all(feature = "cuda", unix))]
mod driver {
    use std::ffi::{CString, c_char};
    use std::marker::PhantomData;
    use std::sync::LazyLock;

    /// The kinds of what is entered.
    pub(super) const WORK: u32 = 0;
    pub(super) const PHASE: u32 = 1;

    /// The functions of `crates/simulated-cuda/src/marks.rs`.
    struct Driver {
        enter: unsafe extern "C" fn(u32, *const c_char, u64),
        leave: extern "C" fn(),
        could_save: extern "C" fn(u64),
        #[cfg(feature = "layers")]
        layers: unsafe extern "C" fn(*const c_char),
    }

    /// The simulated driver, if it is the libcuda of this process.
    static DRIVER: LazyLock<Option<Driver>> = LazyLock::new(|| {
        let process = libloading::os::unix::Library::this();
        // SAFETY: only the simulated driver has functions of these names, and they have these signatures. It is linked, so it stays loaded.
        unsafe {
            Some(Driver {
                enter: *process.get(b"simulated_cuda_enter\0").ok()?,
                leave: *process.get(b"simulated_cuda_leave\0").ok()?,
                could_save: *process.get(b"simulated_cuda_could_save\0").ok()?,
                #[cfg(feature = "layers")]
                layers: *process.get(b"simulated_cuda_layers\0").ok()?,
            })
        }
    });

    /// Ends on the thread on which it began.
    pub(super) struct Entered(Option<&'static Driver>, PhantomData<*const ()>);

    impl Drop for Entered {
        fn drop(&mut self) {
            if let Some(driver) = self.0 {
                (driver.leave)();
            }
        }
    }

    pub(super) fn enter(kind: u32, samples: u64, name: impl FnOnce() -> String) -> Entered {
        let driver = DRIVER.as_ref().and_then(|driver| {
            let name = CString::new(name()).ok()?;
            // SAFETY: a text with a final zero byte, which the function copies.
            unsafe { (driver.enter)(kind, name.as_ptr(), samples) };
            Some(driver)
        });
        Entered(driver, PhantomData)
    }

    pub(super) fn could_save(bytes: impl FnOnce() -> Option<u64>) {
        if let Some((driver, bytes)) = DRIVER.as_ref().and_then(|driver| Some((driver, bytes()?))) {
            (driver.could_save)(bytes);
        }
    }

    #[cfg(feature = "layers")]
    pub(super) fn layers(path: impl FnOnce() -> String) {
        if let Some(driver) = DRIVER.as_ref()
            && let Ok(path) = CString::new(path())
        {
            // SAFETY: as above.
            unsafe { (driver.layers)(path.as_ptr()) };
        }
    }
}

#[cfg(not(all(feature = "cuda", unix)))]
mod driver {
    pub(super) const WORK: u32 = 0;
    pub(super) const PHASE: u32 = 1;

    pub(super) struct Entered;

    #[inline]
    pub(super) fn enter(_: u32, _: u64, _: impl FnOnce() -> String) -> Entered {
        Entered
    }

    #[inline]
    pub(super) fn could_save(_: impl FnOnce() -> Option<u64>) {}

    #[cfg(feature = "layers")]
    #[inline]
    pub(super) fn layers(_: impl FnOnce() -> String) {}
}
