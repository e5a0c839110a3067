use std::cell::Cell;

use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, Device, Error, InplaceOp2, Layout, Result as CandleResult, Storage, Tensor,
    WithDType,
};

use super::gradient::Gradient;
use super::lanes::{Lanes, Target};
use super::moment::Moment;
use super::real::{Stored, values_mut};
use super::share::{CHUNK, in_blocks, is_shared, sum, sum_of_squares, take};
use crate::error::Result;
use crate::optim::fused::{Managed, Setup, Snapshot};
use crate::optim::rule::Rule;

/// The state of one parameter.
#[derive(Debug)]
pub struct State {
    step: u64,
    tensors: Vec<CpuStorage>,
    master: Option<CpuStorage>,
    partials: Vec<f64>,
    scratch: Vec<f64>,
    /// Sum of the gradient's squares, from the last survey; NaN if it is not finite.
    pub squares: f64,
}

impl State {
    pub fn new<R: Rule>(parameter: &Managed, saved: Option<&Snapshot>) -> Result<Self> {
        let new = Snapshot::new(parameter, saved, &Device::Cpu)?;
        let tensors = match saved {
            Some(_) => new.tensors.iter().map(storage).collect(),
            // Not copied: the system provides zeroed memory only when it is first written.
            None => (parameter.kept.iter())
                .map(|(kept, dtype)| CpuDevice.zeros_impl(&kept.dims.clone().into(), *dtype))
                .collect(),
        };
        let tensors: CandleResult<_> = tensors;
        Ok(Self {
            step: new.step,
            tensors: tensors?,
            master: new.master.as_ref().map(storage).transpose()?,
            partials: vec![0.; parameter.len.div_ceil(CHUNK)],
            scratch: vec![0.; R::matrices(parameter.var.dims())],
            squares: 0.,
        })
    }

    pub fn snapshot(&self, parameter: &Managed) -> Snapshot {
        let tensor = |storage: &CpuStorage, dims: &[usize]| {
            let storage = Storage::Cpu(storage.clone());
            Tensor::from_storage(storage, dims, BackpropOp::none(), false)
        };
        let kept = self.tensors.iter().zip(&parameter.kept);
        let kept = kept.map(|(storage, (kept, _))| tensor(storage, &kept.dims));
        let master = self.master.as_ref();
        Snapshot {
            step: self.step,
            tensors: kept.collect(),
            master: master.map(|storage| tensor(storage, parameter.var.dims())),
        }
    }

    pub fn survey<P: Stored>(&mut self, len: usize, gradient: &Tensor) -> CandleResult<()> {
        let (storage, layout) = gradient.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Err(misplaced());
        };
        let gradient = Gradient::<P>::new(storage, layout, 1., f64::INFINITY)?;
        self.squares = sum(&mut self.partials, len, is_shared(len), |range| {
            let (mut total, mut is_finite) = (0., true);
            in_blocks(range, |start, block| {
                gradient.load(start, block);
                let finite = block.iter().map(|value| value.to_f64().is_finite());
                is_finite &= finite.fold(true, |all, one| all & one);
                total += sum_of_squares(block);
            });
            if is_finite { total } else { f64::NAN }
        });
        Ok(())
    }

    /// Updates the parameter with `scale` times its gradient.
    pub fn update<R: Rule, P: Stored>(
        &mut self,
        setup: &Setup<R>,
        parameter: &Managed,
        gradient: &Tensor,
        scale: f64,
    ) -> CandleResult<()> {
        let work = |storage: &mut CpuStorage, gradient: &CpuStorage, layout: &Layout| {
            let mut values = values_mut(storage).ok_or_else(misplaced)?;
            take(&mut values, parameter.start);
            let mut kept = self.tensors.iter_mut();
            let mut next = || match kept.next() {
                Some(storage) => Moment::of(storage).ok_or_else(misplaced),
                None => Ok(Moment::default()),
            };
            let master = self.master.as_mut();
            let master = master.map(|master| values_mut(master).ok_or_else(misplaced));
            let lanes = Lanes::<P> {
                start: 0,
                parameter: take(&mut values, parameter.len),
                gradient: Gradient::new(gradient, layout, scale, setup.adjustment.bound())?,
                state: [next()?, next()?],
                master: master.transpose()?,
            };
            let target = Target {
                lanes,
                dims: parameter.var.dims(),
                partials: &mut self.partials,
                scratch: &mut self.scratch,
                is_shared: is_shared(parameter.len),
            };
            self.step = self.step.saturating_add(1);
            (setup.rule).apply(setup.rates(parameter), self.step, target);
            Ok(())
        };
        let visit = Visit(Cell::new(Some(work)));
        parameter.handle.inplace_op2(gradient, &visit)
    }
}

/// An operation that passes the storage of a parameter and of its gradient to `F`.
struct Visit<F>(Cell<Option<F>>);

impl<F> InplaceOp2 for Visit<F>
where
    F: FnOnce(&mut CpuStorage, &CpuStorage, &Layout) -> CandleResult<()>,
{
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        _: &Layout,
        gradient: &CpuStorage,
        layout: &Layout,
    ) -> CandleResult<()> {
        let work = self.0.take();
        work.map_or(Ok(()), |work| work(parameter, gradient, layout))
    }
}

fn storage(tensor: &Tensor) -> CandleResult<CpuStorage> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(storage.clone()),
        _ => Err(misplaced()),
    }
}

/// An error that the checks before an update should prevent.
pub fn misplaced() -> Error {
    Error::Msg("the type or device of a gradient or parameter has changed".to_owned()).bt()
}
