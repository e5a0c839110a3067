use std::ffi::c_void;
use std::ptr::from_ref;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::launch_kernel;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaStream};
use candle_core::{CudaDevice, Result};

use super::layout::{Arguments, THREADS, misplaced};
use crate::optim::rule::Kernel;

/// Compiled kernels, and the name of their module.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    pub name: &'static str,
    ptx: &'static str,
}

macro_rules! module {
    ($name:literal) => {
        Module {
            name: $name,
            ptx: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")),
        }
    };
}

pub const SURVEY: Module = module!("survey");
const ADAFACTOR: Module = module!("adafactor");
const ADAM: Module = module!("adam");
const LION: Module = module!("lion");
const SGD: Module = module!("sgd");

impl Module {
    /// The kernels of a rule.
    pub fn of(kernel: Kernel) -> Self {
        match kernel {
            Kernel::Adafactor => ADAFACTOR,
            Kernel::Adam | Kernel::AdamW => ADAM,
            Kernel::Lion => LION,
            Kernel::Sgd => SGD,
        }
    }

    /// The kernel that decides about a rule's step; adam.cu has two.
    pub fn decision(kernel: Kernel) -> String {
        match kernel {
            Kernel::AdamW => "decide_adamw".to_owned(),
            _ => format!("decide_{}", Self::of(kernel).name),
        }
    }
}

/// A kernel and its number of blocks.
#[derive(Debug)]
pub struct Launch {
    function: CudaFunction,
    blocks: (u32, u32),
    /// The address of the tasks of its blocks, for kernels that have a second argument.
    tasks: u64,
}

impl Launch {
    pub fn new(
        device: &CudaDevice,
        module: Module,
        kernel: &str,
        blocks: usize,
        parts: u32,
    ) -> Result<Self> {
        let name = format!("candle-headroom-{}", module.name);
        let function = device.get_or_load_custom_func(kernel, &name, module.ptx)?;
        Ok(Self {
            function: function.into_cuda_function(),
            blocks: (
                u32::try_from(blocks.max(1)).map_err(|_| misplaced())?,
                parts,
            ),
            tasks: 0,
        })
    }

    pub fn with_tasks(self, tasks: u64) -> Self {
        Self { tasks, ..self }
    }

    /// Does without cudarc's builder, which allocates, and records events after the launch that can fail when parameters have changed
    /// already.
    ///
    /// # Safety
    /// The memory that `arguments` points to lives until the stream has executed this launch.
    pub unsafe fn run(&self, stream: &CudaStream, arguments: &Arguments) -> Result<()> {
        let mut both: [*mut c_void; 2] = [
            from_ref(arguments).cast_mut().cast(),
            from_ref(&self.tasks).cast_mut().cast(),
        ];
        // SAFETY: the kernels take `Arguments`, and some of them a pointer after it; both are copied before this returns. The grid
        // is that of the tables that the kernel reads; the caller guarantees the rest.
        unsafe {
            launch_kernel(
                self.function.cu_function(),
                (self.blocks.0, self.blocks.1, 1),
                (THREADS as u32, 1, 1),
                0,
                stream.cu_stream(),
                &mut both,
            )
        }
        .w()
    }
}
