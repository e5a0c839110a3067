//! Which operation a tensor comes from.
//!
//! candle does not tell what leads to a tensor, but it shares its storage among views: an output and what was made of it by
//! reshapes and permutations have the same. No other operation of candle's graph returns the storage of an argument.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::mem::replace;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout, Result, Shape, Storage, Tensor};
use parking_lot::Mutex;

use super::gradient::{Gradient, Part, address};
use super::mailbox::Mailbox;
use super::node::node;
use crate::kernel::{InPlace, in_place};

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
    /// The origin of a tensor, if it is an output of a recorded operation or a view of one.
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
        let value = Some((take_storage(output)?, shape));
        let held = Arc::clone(&origin);
        // Hands on what candle's operations add up.
        let hand_on = move |_: &[&Tensor], _: &Tensor, gradient: &Tensor| {
            let gradient = Gradient::alone(gradient.detach());
            let scalar = held.mailbox.leave(&held.link, [(held.place, gradient)])?;
            Ok(vec![scalar])
        };
        let output = node(name, std::slice::from_ref(link), value, hand_on)?;
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

/// A view that shows each element of a contiguous tensor, or of a part of one, once: by any number of reshapes and permutations, and by `narrow`
/// along one dimension.
pub struct View {
    /// The dimensions in the order in which they lie in memory.
    order: Vec<usize>,
    whole: Shape,
    part: Option<Part>,
}

impl View {
    /// The layout of a tensor that shares the storage of a contiguous one of this shape, which begins at its start. `None` if it
    /// shows a part of more than one dimension, or an element twice.
    fn new(layout: &Layout, whole: &Shape) -> Option<Self> {
        let extents: Vec<_> = layout.dims().iter().zip(layout.stride()).collect();
        let mut order: Vec<_> = extents.iter().copied().enumerate().collect();
        // The stride of a dimension of length 1 means nothing.
        order.sort_by_key(|&(_, (len, stride))| (*len > 1, Reverse(*stride)));
        let (all, start) = (whole.elem_count(), layout.start_offset());
        // Elements without a gap before the next dimension, and those of the first gap with them.
        let (mut dense, mut part) = (1, None);
        let shown = order.iter().rev().filter(|(_, (len, _))| **len > 1);
        let periods = shown.map(|(_, (len, stride))| (**stride, **len));
        for (period, len) in periods.chain([(all, 1)]) {
            if period != dense {
                if part.is_some() || start + dense > period {
                    return None;
                }
                let len = dense;
                part = Some(Part { period, start, len });
            }
            dense = period * len;
        }
        let is_shown = layout.shape().elem_count() > 0 && (part.is_some() || start == 0);
        is_shown.then(|| Self {
            order: order.into_iter().map(|(dim, _)| dim).collect(),
            whole: whole.clone(),
            part,
        })
    }

    /// A gradient of the view as one of the tensor.
    pub fn back(&self, gradient: Gradient) -> Result<Gradient> {
        let tensor = gradient.tensor.permute(self.order.as_slice())?;
        let of = |tensor| Gradient::new(tensor, gradient.is_alone);
        match self.part {
            Some(part) => Ok(of(tensor).of_part(part, self.whole.clone())),
            None => Ok(of(tensor.reshape(&self.whole)?)),
        }
    }
}

/// Whether a tensor is an output of a recorded operation, whole, contiguous and not empty: candle's graph does not keep it for those that it is
/// an input of.
pub fn is_output(tensor: &Tensor) -> bool {
    let is_whole = |(_, view): (_, View)| view.part.is_none();
    tensor.is_contiguous() && tensor.elem_count() > 0 && Origin::of(tensor).is_some_and(is_whole)
}

/// A tensor with the values of `output` that shares no storage with the inputs.
pub fn unshared(output: Tensor, inputs: &[&Tensor]) -> Result<Tensor> {
    let storage = address(&output);
    let is_shared = inputs.iter().any(|input| address(input) == storage);
    match is_shared && output.elem_count() > 0 {
        true => output.force_contiguous(),
        false => Ok(output),
    }
}

/// Moves the storage out of a tensor. One without elements, for which many of candle's operations return an argument, keeps it.
fn take_storage(tensor: Tensor) -> Result<Storage> {
    const NAME: &str = "take-storage";
    let tensor = match tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
        // One element, because CUDA may refuse to allocate nothing.
        _ if tensor.elem_count() == 0 => Tensor::zeros(1, tensor.dtype(), tensor.device())?,
        true => tensor,
        false => tensor.force_contiguous()?,
    };
    in_place(NAME, &tensor, |storage, layout| match storage {
        InPlace::Cpu(storage) => Ok(Storage::Cpu(replace(storage, CpuStorage::U8(Vec::new())))),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(storage) => {
            let empty = crate::kernel::cuda::unread(&storage.device, candle_core::DType::U8)?;
            Ok(Storage::Cuda(replace(storage, empty)))
        }
        // Clones share a Metal buffer.
        InPlace::Metal(storage) => Ok(Storage::Metal(storage.try_clone(layout)?)),
    })
}
