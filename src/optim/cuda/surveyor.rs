use candle_core::CudaDevice;
use candle_core::backprop::GradStore;
use candle_core::cuda_backend::WrapErr;

use super::address::code;
use super::launch::{Launch, chunks, survey};
use super::layout::Slot;
use super::tables::Tables;
use crate::error::Result;
use crate::optim::fused::{Progress, Setup};
use crate::optim::rule::Rule;

/// Sums the squares of the gradients' elements in ranges, which need not be those of the state.
#[derive(Debug)]
pub struct Surveyor {
    slots: Vec<Slot>,
    tables: Tables,
    survey: Launch,
}

impl Surveyor {
    pub fn new<R: Rule>(device: &CudaDevice, setup: &Setup<R>) -> Result<Self> {
        let (mut slots, mut first_chunk) = (Vec::new(), 0);
        for (parameter, range) in setup.ranges() {
            let slot = Slot {
                first: range.start as u64,
                len: range.len() as u64,
                dtype: code(parameter.var.dtype())?,
                first_chunk,
                ..Slot::default()
            };
            first_chunk += slot.chunks();
            slots.push(slot);
        }
        if slots.is_empty() {
            slots.push(Slot::default());
        }
        let (chunks, counts) = (chunks(&slots), vec![0; slots.len()]);
        let progress = Progress::new(&setup.adjustment);
        Ok(Self {
            survey: survey(device, &chunks)?,
            tables: Tables::new(device, &slots, &chunks, &counts, progress)?,
            slots,
        })
    }

    /// Adds in the order in which the CPU adds.
    pub fn measure<R: Rule>(
        &mut self,
        device: &CudaDevice,
        setup: &Setup<R>,
        gradients: &GradStore,
    ) -> Result<f64> {
        self.tables.describe(device, setup, gradients, None)?;
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().w()?;
        // SAFETY: the gradients and the tables are on this device, and this stream orders all work on them and their frees. `describe`
        // has made it wait for other streams, and the sums are read before this returns. The kernel writes to the tables alone.
        unsafe { self.survey.run(&stream, &self.tables.arguments) }?;
        let partials = self.tables.partials(device)?;
        let mut total = 0.;
        for (slot, (parameter, _)) in self.slots.iter().zip(setup.ranges()) {
            if setup.gradient(parameter, gradients).is_some() {
                let chunks = partials.iter().skip(slot.first_chunk as usize);
                total += chunks.take(slot.chunks() as usize).sum::<f64>();
            }
        }
        Ok(total)
    }
}
