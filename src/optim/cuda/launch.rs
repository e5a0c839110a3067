use std::ffi::c_void;
use std::ptr::from_ref;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::launch_kernel;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaSlice, CudaStream};
use candle_core::{CudaDevice, Result};

use super::layout::{Arguments, Slot, Task};
use super::tables::start;
use crate::optim::fused::misplaced;
use crate::optim::rule::{ParamsAdafactor, Rule};

const THREADS: usize = 256;
/// Blocks that share a chunk in a rule's one pass; as in kernels/elementwise.cuh.
const PARTS: u32 = 4;

/// Kinds of tasks, rows that a block sums, and means that it computes; as in kernels/adafactor.cu.
const SQUARES: u32 = 0;
const ROWS: u32 = 1;
const COLUMNS: u32 = 2;
const MEANS: u32 = 3;
const ROWS_PER_TASK: usize = 64;
const MEANS_PER_TASK: usize = THREADS / 32;

macro_rules! module {
    ($name:literal) => {
        (
            concat!("candle-headroom-", $name),
            include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")),
        )
    };
}

/// The name and the code of the module that holds a kernel.
fn module(kernel: &str) -> Result<(&'static str, &'static str)> {
    match kernel.rsplit('_').next() {
        Some("survey") => Ok(module!("survey")),
        Some("adafactor") => Ok(module!("adafactor")),
        Some("adam" | "adamw") => Ok(module!("adam")),
        Some("lion") => Ok(module!("lion")),
        Some("sgd") => Ok(module!("sgd")),
        _ => Err(misplaced()),
    }
}

/// A kernel, its number of blocks, and the table of their tasks for kernels that have a second argument.
#[derive(Debug)]
pub struct Launch {
    function: CudaFunction,
    blocks: (u32, u32, u32),
    _tasks: Option<CudaSlice<Task>>,
    tasks: u64,
}

impl Launch {
    /// The kernel's name ends with its rule's, which selects the module.
    fn new(device: &CudaDevice, kernel: &str, blocks: usize, parts: u32) -> Result<Self> {
        let (module, ptx) = module(kernel)?;
        let function = device.get_or_load_custom_func(kernel, module, ptx)?;
        let blocks = u32::try_from(blocks.max(1)).map_err(|_| misplaced())?;
        Ok(Self {
            function: function.into_cuda_function(),
            blocks: (blocks, parts, 1),
            _tasks: None,
            tasks: 0,
        })
    }

    /// A launch with a block for each task; `None` without tasks.
    fn of_tasks(device: &CudaDevice, kernel: &str, tasks: &[Task]) -> Result<Option<Self>> {
        if tasks.is_empty() {
            return Ok(None);
        }
        let table = device.clone_htod(tasks)?;
        Ok(Some(Self {
            tasks: start(&table, &device.cuda_stream()),
            _tasks: Some(table),
            ..Self::new(device, kernel, tasks.len(), 1)?
        }))
    }

    /// Not by cudarc's builder, which allocates and records events after the launch, which can fail when parameters have already
    /// changed.
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
                self.blocks,
                (THREADS as u32, 1, 1),
                0,
                stream.cu_stream(),
                &mut both,
            )
        }
        .w()
    }
}

/// The chunks of all pieces. There is at least one, since the last launch also makes the next control current.
pub fn chunks(slots: &[Slot]) -> Vec<Task> {
    let chunks = (0..).zip(slots);
    let chunks = chunks.flat_map(|(parameter, slot)| tasks(parameter, SQUARES, slot.chunks(), 1));
    let mut chunks: Vec<_> = chunks.collect();
    if chunks.is_empty() {
        chunks.push(Task::default());
    }
    chunks
}

fn tasks(parameter: u32, kind: u32, count: u64, step: usize) -> impl Iterator<Item = Task> {
    (0..count).step_by(step).map(move |start| Task {
        parameter,
        kind,
        start,
    })
}

/// The launch that sums the gradients' squares in each chunk.
pub fn survey(device: &CudaDevice, chunks: &[Task]) -> Result<Launch> {
    Launch::new(device, "survey", chunks.len(), 1)
}

/// The launches of an update, after the survey.
pub fn launches<R: Rule>(
    device: &CudaDevice,
    slots: &[Slot],
    chunks: &[Task],
) -> Result<Vec<Launch>> {
    let blocks = chunks.len();
    let mut launches = Vec::new();
    let decision = format!("decide_{}", R::NAME.to_lowercase());
    launches.push(Launch::new(device, &decision, 1, 1)?);
    let mut parts = PARTS;
    if R::KERNELS == ParamsAdafactor::KERNELS {
        let (mut gather, mut settle) = (chunks.to_vec(), Vec::new());
        for (parameter, slot) in (0..).zip(slots) {
            let rows = slot.matrices * slot.rows;
            let columns = slot.matrices * slot.columns;
            gather.extend(tasks(parameter, ROWS, rows, ROWS_PER_TASK));
            gather.extend(tasks(parameter, COLUMNS, columns, THREADS));
            settle.extend(tasks(parameter, MEANS, slot.matrices, MEANS_PER_TASK));
        }
        launches.extend(Launch::of_tasks(device, "gather_adafactor", &gather)?);
        launches.extend(Launch::of_tasks(device, "settle_adafactor", &settle)?);
        let each_parameter = slots.len().div_ceil(THREADS);
        launches.push(Launch::new(device, "size_adafactor", each_parameter, 1)?);
        launches.push(Launch::new(device, "measure_adafactor", blocks, 1)?);
        launches.push(Launch::new(device, "limit_adafactor", each_parameter, 1)?);
        parts = 1;
    }
    let last = format!("move_{}", R::KERNELS);
    launches.push(Launch::new(device, &last, blocks, parts)?);
    Ok(launches)
}
