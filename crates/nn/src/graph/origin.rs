//! Which operation a tensor comes from.
//!
//! candle does not tell what leads to a tensor, but it shares its storage among views: an output and what was made of it by
//! reshapes and permutations have the same. No other operation of candle's graph returns the storage of an argument.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Error, Layout, MetalStorage, Result, Shape, Storage, Tensor,
};
use parking_lot::Mutex;

use super::gradient::{Gradient, address};
use super::mailbox::Mailbox;
use super::take::take_storage;
use super::view::View;

/// The origins of all recorded outputs that exist, by the address of the output's storage.
static ORIGINS: LazyLock<Mutex<HashMap<usize, Weak<Origin>>>> = LazyLock::new(Mutex::default);

/// What an output of a recorded operation comes from.
pub struct Origin {
    /// The operation in candle's graph.
    pub link: Tensor,
    pub mailbox: Arc<Mailbox>,
    /// The place of the output's gradient.
    pub place: usize,
    /// Outside the graph. While it exists, no other storage has its address.
    output: OnceLock<Tensor>,
}

impl Origin {
    /// The origin of a tensor, if it is an output of a recorded operation or a view of all of one.
    pub fn of(tensor: &Tensor) -> Option<(Arc<Self>, View)> {
        if !tensor.track_op() || tensor.is_variable() {
            return None;
        }
        let origin = ORIGINS.lock().get(&address(tensor).addr())?.upgrade()?;
        let view = View::new(tensor.layout(), origin.output.get()?.shape())?;
        Some((origin, view))
    }

    /// Puts an output into the graph. Its storage is moved.
    pub fn record(
        name: &'static str,
        link: &Tensor,
        mailbox: &Arc<Mailbox>,
        place: usize,
        output: Tensor,
    ) -> Result<Tensor> {
        let origin = Arc::new(Self {
            link: link.clone(),
            mailbox: Arc::clone(mailbox),
            place,
            output: OnceLock::new(),
        });
        let shape = output.shape().clone();
        let output = link.apply_op1(Output {
            name,
            value: Mutex::new(Some((take_storage(output)?, shape))),
            origin: Arc::clone(&origin),
        })?;
        let storage = address(origin.output.get_or_init(|| output.detach()));
        ORIGINS
            .lock()
            .insert(storage.addr(), Arc::downgrade(&origin));
        Ok(output)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(output) = self.output.get() {
            ORIGINS.lock().remove(&address(output).addr());
        }
    }
}

/// An operation of candle's graph whose output is already computed.
struct Output {
    name: &'static str,
    value: Mutex<Option<(Storage, Shape)>>,
    origin: Arc<Origin>,
}

impl Output {
    fn value(&self) -> Result<(Storage, Shape)> {
        let missing = || Error::Msg(format!("{}: the output was taken twice", self.name)).bt();
        self.value.lock().take().ok_or_else(missing)
    }

    fn elsewhere(&self) -> Error {
        Error::Msg(format!("{}: the inputs are on several devices", self.name)).bt()
    }
}

impl CustomOp1 for Output {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.value()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.value()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        match self.value()? {
            (Storage::Metal(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    /// Hands on what candle's operations add up.
    fn bwd(&self, link: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (place, gradient) = (self.origin.place, Gradient::alone(gradient.detach()));
        let scalar = self.origin.mailbox.leave(link, [(place, gradient)])?;
        Ok(Some(scalar))
    }
}
