//! What a region keeps between its two runs: tensors on the device, or in pinned memory of the host.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use parking_lot::Mutex;

use super::error::RecomputeError;
use super::scope::is_within;
use crate::graph::{address, is_output};
use crate::kernel::cuda::{Away, Host, Stays};
use crate::scope::OnDrop;

/// Moves the inputs of [`recompute`](crate::recompute()) regions to pinned memory of the host, from where the backward pass fetches them.
///
/// A deep model whose blocks are regions then keeps no activations on a GPU but those of one block and the inputs of two, at the price of
/// the host's memory and of two copies of each input. A copy to the host runs beside the region's own work, and the backward pass fetches
/// the inputs of a region while it computes the one behind it. Values are the same, bit by bit.
///
/// What moves are inputs that lead to a Var and that other regions or layers of this package returned, whole and contiguous: the graph
/// itself keeps others, such as sums by candle's own operations. An input that the program keeps too leaves the device when
/// the program drops it. One that two regions have is copied for each. Regions within regions keep their inputs.
///
/// Pinned memory is used again by later steps, and given back when the last clone and the last graph are dropped. It never exceeds its
/// limit: inputs that find no place stay on the device, and so do those for which the host has no memory to pin, which is no error; see
/// [`stats`](Self::stats). It serves one GPU, the first whose inputs move. On the CPU and on Metal nothing moves.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom_nn::{Offload, recompute};
///
/// let offload = Offload::new(8 << 30); // at most 8 GiB of pinned memory, for all steps
/// let x = Var::ones(3, DType::F32, &Device::Cpu)?;
/// let loss = offload.within(|| {
///     let y = recompute(x.as_tensor(), |x| x.exp())?;
///     recompute(&y, |y| y.sqr()?.sum_all())
/// })?;
/// assert!(loss.backward()?.get(&x).is_some());
/// assert_eq!(offload.stats().moved, 0); // there is no GPU
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Offload(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Most bytes of pinned memory.
    most: u64,
    state: Mutex<(Option<Arc<Host>>, OffloadStats)>,
}

/// What an [`Offload`] did.
///
/// ```
/// use candle_headroom_nn::Offload;
///
/// let stats = Offload::new(1 << 30).stats();
/// assert_eq!((stats.moved, stats.over_limit, stats.refused, stats.pinned), (0, 0, 0, 0));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadStats {
    /// Number of inputs that were moved to the host.
    pub moved: u64,
    /// Number of inputs that stayed on the device because pinned memory would have exceeded its limit: raise it, or cut the batch.
    pub over_limit: u64,
    /// Number of inputs that stayed on the device because the host refused to pin memory for them: lower the limit, or free memory there.
    pub refused: u64,
    /// Bytes of pinned memory, in use or not.
    pub pinned: u64,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// The work of [`Offload::within`].
struct Scope {
    shared: Arc<Shared>,
    /// Outputs of regions by the addresses of their storages, to be moved when they are inputs. One that has moved is no longer here.
    outputs: HashMap<usize, Weak<Stored>>,
    /// Of the last region.
    inputs: Weak<[Kept]>,
}

impl Offload {
    /// With at most so many bytes of pinned memory.
    ///
    /// ```
    /// use candle_headroom_nn::Offload;
    ///
    /// let offload = Offload::new(8 << 30);
    /// let for_closure = offload.clone(); // the same memory
    /// assert_eq!(for_closure.stats(), offload.stats());
    /// ```
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shared {
            most: bytes,
            state: Mutex::default(),
        }))
    }

    /// Runs `work` on this thread, in which the inputs of regions move. In a trainer, `work` is the forward pass, in the closure that the
    /// trainer is given.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use candle_headroom_nn::{Offload, recompute};
    ///
    /// let offload = Offload::new(1 << 30);
    /// let w = Var::new(&[2f32, 3.], &Device::Cpu)?;
    /// let loss = |x: &Tensor| offload.within(|| recompute((x, w.as_tensor()), |(x, w)| (x * w)?.sum_all()));
    /// let x = Tensor::new(&[1f32, 1.], &Device::Cpu)?;
    /// assert_eq!(loss(&x)?.to_scalar::<f32>()?, 5.);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let scope = Scope {
            shared: Arc::clone(&self.0),
            outputs: HashMap::new(),
            inputs: Weak::<[Kept; 0]>::new(),
        };
        let mut outer = SCOPE.replace(Some(scope));
        let _restored = OnDrop(|| SCOPE.set(outer.take()));
        work()
    }

    /// What it did so far.
    ///
    /// ```
    /// use candle_headroom_nn::Offload;
    ///
    /// let stats = Offload::new(1 << 30).stats();
    /// assert_eq!(stats.over_limit + stats.refused, 0); // none had to stay
    /// ```
    pub fn stats(&self) -> OffloadStats {
        let state = self.0.state.lock();
        let (host, stats) = &*state;
        let pinned = host.as_ref().map_or(0, |host| host.pinned());
        OffloadStats { pinned, ..*stats }
    }
}

impl Shared {
    /// Queues the copy of a tensor to the host, unless it stays.
    fn leave(&self, tensor: &Tensor) -> Result<Option<Away>> {
        let Device::Cuda(device) = tensor.device() else {
            return Ok(None);
        };
        let mut state = self.state.lock();
        let (host, stats) = &mut *state;
        let host = match host {
            Some(host) if host.is_of(device) => host,
            Some(_) => return Ok(None),
            None => host.insert(Arc::new(Host::new(device)?)),
        };
        let left = host.leave(tensor, self.most)?;
        let count = match &left {
            Ok(_) => &mut stats.moved,
            Err(Stays::Limit) => &mut stats.over_limit,
            Err(Stays::Refused) => &mut stats.refused,
        };
        *count += 1;
        Ok(left.ok())
    }
}

/// A tensor that a region keeps, or some of its rows.
pub struct Kept {
    stored: Arc<Stored>,
    whole: Shape,
    /// Of the first row, if it is not the whole.
    start: Option<usize>,
    pub shape: Shape,
    pub dtype: DType,
}

/// Shared by the region that returned a tensor and the one that has it as an input.
type Stored = Mutex<State>;

enum State {
    Here(Tensor),
    Away(Away),
    /// Freed, because nothing needs it any more.
    Gone,
}

impl Kept {
    /// Keeps a tensor that is outside of any graph.
    fn new(tensor: &Tensor) -> Self {
        Self {
            stored: Arc::new(Mutex::new(State::Here(tensor.clone()))),
            whole: tensor.shape().clone(),
            start: None,
            shape: tensor.shape().clone(),
            dtype: tensor.dtype(),
        }
    }

    /// Rows of the same matrix.
    pub fn rows(&self, start: usize, len: usize) -> Result<Self> {
        let (_, width) = self.whole.dims2()?;
        Ok(Self {
            stored: Arc::clone(&self.stored),
            whole: self.whole.clone(),
            start: Some(start),
            shape: (len, width).into(),
            dtype: self.dtype,
        })
    }

    /// The tensor on the device, outside of any graph.
    pub fn get(&self) -> Result<Tensor> {
        let whole = match &mut *self.stored.lock() {
            State::Here(tensor) => tensor.reshape(&self.whole)?,
            State::Away(away) => away.arrive(&self.whole, false)?,
            State::Gone => return Err(RecomputeError::walked_again()),
        };
        match self.start {
            Some(start) => whole.narrow(0, start, self.shape.dims2()?.0),
            None => Ok(whole),
        }
    }

    /// A variable of the same values, of a whole tensor.
    pub fn variable(&self) -> Result<Tensor> {
        match &mut *self.stored.lock() {
            State::Here(tensor) => {
                Ok(Var::from_tensor(&tensor.reshape(&self.whole)?)?.into_inner())
            }
            State::Away(away) => away.arrive(&self.whole, true),
            State::Gone => Err(RecomputeError::walked_again()),
        }
    }

    /// Frees what is kept on the device.
    pub fn free(&self) {
        let state = &mut *self.stored.lock();
        if let State::Here(_) = state {
            *state = State::Gone;
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(*self.stored.lock(), State::Gone)
    }

    fn if_away(&self, work: impl Fn(&mut Away) -> Result<()>) -> Result<()> {
        match &mut *self.stored.lock() {
            State::Here(_) | State::Gone => Ok(()),
            State::Away(away) => work(away),
        }
    }
}

/// The inputs of a region.
pub struct Inputs {
    pub kept: Arc<[Kept]>,
    /// Those of the region before, which the backward pass fetches ahead.
    before: Weak<[Kept]>,
}

impl Inputs {
    /// Keeps inputs, and begins to move those that leave the device. `detached` are the same outside of the graph.
    pub fn new(inputs: &[Tensor], detached: &[Tensor]) -> Result<Self> {
        SCOPE.with_borrow_mut(|scope| {
            let scope = scope.as_mut().filter(|_| !is_within());
            let Some(scope) = scope else {
                let before = Weak::<[Kept; 0]>::new();
                let kept = detached.iter().map(Kept::new).collect();
                return Ok(Self { kept, before });
            };
            let pairs = inputs.iter().zip(detached);
            let kept = pairs.map(|(input, detached)| scope.keep(input, detached));
            let kept = kept.collect::<Result<Arc<[_]>>>()?;
            let before = std::mem::replace(&mut scope.inputs, Arc::downgrade(&kept));
            Ok(Self { kept, before })
        })
    }

    /// The first run is queued: has the device's stream wait for the copies behind it, so that the memory of what has moved can be freed.
    pub fn left(&self) -> Result<()> {
        self.kept
            .iter()
            .try_for_each(|kept| kept.if_away(Away::left))
    }

    /// Frees those that are on the device.
    pub fn free(&self) {
        self.kept.iter().for_each(Kept::free);
    }

    /// Begins to fetch the inputs of the region that is differentiated after this one.
    pub fn fetch_before(&self) {
        let before = self.before.upgrade();
        for kept in before.iter().flat_map(|before| before.iter()) {
            // Where it fails, that region tries it again.
            let _ = kept.if_away(Away::depart);
        }
    }
}

impl Scope {
    fn keep(&mut self, input: &Tensor, detached: &Tensor) -> Result<Kept> {
        let mut kept = Kept::new(detached);
        if !is_output(input) {
            return Ok(kept);
        }
        let address = address(detached).addr();
        if let Some(away) = self.shared.leave(detached)? {
            let known = self.outputs.remove(&address);
            kept.stored = known
                .and_then(|known| known.upgrade())
                .unwrap_or(kept.stored);
            *kept.stored.lock() = State::Away(away);
        }
        Ok(kept)
    }
}

/// Keeps the outputs of a region, which may become inputs of another one. Their values are kept if they will be compared.
pub fn outputs(outputs: &[Tensor], are_compared: bool) -> Vec<Kept> {
    let kept: Vec<_> = (outputs.iter())
        .map(|output| Kept::new(&output.detach()))
        .collect();
    if !are_compared {
        kept.iter().for_each(Kept::free);
    }
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope.as_mut().filter(|_| !is_within()) {
            for (output, kept) in outputs.iter().zip(&kept) {
                let stored = Arc::downgrade(&kept.stored);
                scope.outputs.insert(address(output).addr(), stored);
            }
        }
    });
    kept
}
