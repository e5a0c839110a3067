use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;

use super::launch::{Launch, Module};
use super::layout::{THREADS, Task};
use super::tables::{Place, start};
use crate::error::Result;

/// Kinds of work, rows that a block sums, and means that it computes; as in kernels/adafactor.cu.
const SQUARES: u32 = 0;
const ROWS: u32 = 1;
const COLUMNS: u32 = 2;
const MEANS: u32 = 3;
const ROWS_PER_TASK: usize = 64;
const MEANS_PER_TASK: usize = THREADS / 32;

/// The work of the blocks that compute Adafactor's sums.
#[derive(Debug)]
pub struct Tasks {
    gather: Option<CudaSlice<Task>>,
    settle: Option<CudaSlice<Task>>,
    lens: [usize; 2],
}

impl Tasks {
    pub fn new(device: &CudaDevice, places: &[Place]) -> Result<Self> {
        let (mut gather, mut settle) = (Vec::new(), Vec::new());
        for (parameter, place) in (0..).zip(places).filter(|(_, place)| place.len > 0) {
            let tasks = |kind, count: usize, step: usize| {
                let starts = (0..count).step_by(step);
                starts.map(move |start| Task {
                    parameter,
                    kind,
                    start: start as u64,
                })
            };
            let [matrices, rows, columns] = place.matrices;
            gather.extend(tasks(SQUARES, place.chunks(), 1));
            gather.extend(tasks(ROWS, matrices * rows, ROWS_PER_TASK));
            gather.extend(tasks(COLUMNS, matrices * columns, THREADS));
            settle.extend(tasks(MEANS, matrices, MEANS_PER_TASK));
        }
        let table = |tasks: &[Task]| match tasks {
            [] => Ok(None),
            tasks => device.clone_htod(tasks).map(Some),
        };
        Ok(Self {
            gather: table(&gather)?,
            settle: table(&settle)?,
            lens: [gather.len(), settle.len()],
        })
    }

    /// The launches between the decision and the last one.
    pub fn launches(
        &self,
        device: &CudaDevice,
        module: Module,
        chunks: usize,
        parameters: usize,
    ) -> Result<Vec<Launch>> {
        let stream = device.cuda_stream();
        let mut launches = Vec::new();
        let tables = [
            ("gather_adafactor", &self.gather),
            ("settle_adafactor", &self.settle),
        ];
        for ((kernel, tasks), len) in tables.into_iter().zip(self.lens) {
            if let Some(tasks) = tasks {
                let launch = Launch::new(device, module, kernel, len, 1)?;
                launches.push(launch.with_tasks(start(tasks, &stream)));
            }
        }
        let each_parameter = parameters.div_ceil(THREADS);
        for (kernel, blocks) in [
            ("size_adafactor", each_parameter),
            ("measure_adafactor", chunks),
            ("limit_adafactor", each_parameter),
        ] {
            launches.push(Launch::new(device, module, kernel, blocks, 1)?);
        }
        Ok(launches)
    }
}
