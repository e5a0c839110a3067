use std::ops::Range;

use candle_core::{DType, Device, Result as CandleResult, Storage, Tensor, Var};

use crate::error::{Result, invalid, untrainable};
use crate::optim::coded::{Code, Form, bytes_of};
use crate::optim::rule::Rule;
use crate::optim::state_dict::MASTER;
use crate::optim::{Moments, Parameter};

/// Parameters with fewer elements keep their moments in f32 where others keep 8 bits.
const FEW: usize = 4096;

/// How f16 and bf16 parameters take updates that are too small for their type.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Halves {
    /// They are rounded to nearest.
    #[default]
    Nearest,
    /// They have master weights.
    Masters,
    /// They are rounded up or down at random.
    Stochastic,
}

/// A tensor of state, and the form in which it is held.
#[derive(Debug, Clone)]
pub struct Held {
    /// Its name in saved state.
    pub name: &'static str,
    /// The code that a moment has in 8 bits; `None` for master weights.
    code: Option<Code>,
    /// The shape of the parameter.
    pub whole: Vec<usize>,
    pub form: Form,
    /// The number of elements in one row that are held of it here; `None` if all are.
    pub part: Option<usize>,
}

impl Held {
    /// The master weights of a parameter of this shape.
    pub fn master(whole: &[usize], full: DType) -> Self {
        Self {
            name: MASTER,
            code: None,
            whole: whole.to_vec(),
            form: Form::Plain(full),
            part: None,
        }
    }

    /// A moment that a rule keeps. `full` is the type that the rule computes in.
    pub fn moment(
        (name, code): (&'static str, Code),
        whole: &[usize],
        moments: Moments,
        full: DType,
    ) -> Self {
        let moment = Self {
            name,
            code: Some(code),
            ..Self::master(whole, full)
        };
        moment.kept_as(moments, full)
    }

    /// The same kept so. Master weights and a few elements in place of 8 bits have the type `full`.
    pub fn kept_as(&self, moments: Moments, full: DType) -> Self {
        let is_large = self.whole.iter().product::<usize>() >= FEW;
        let form = match (self.code, moments) {
            (Some(_), Moments::Float(dtype)) => Form::Plain(dtype),
            (Some(code), Moments::EightBit) if is_large => Form::Coded(code),
            _ => Form::Plain(full),
        };
        Self {
            form,
            ..self.clone()
        }
    }

    /// The type of the tensor in memory.
    pub fn dtype(&self) -> DType {
        match self.form {
            Form::Plain(dtype) => dtype,
            Form::Coded(_) => DType::U8,
        }
    }

    /// The shape of the tensor in memory.
    pub fn dims(&self) -> Vec<usize> {
        match self.form {
            Form::Plain(_) => self.saved_dims(),
            Form::Coded(_) => vec![bytes_of(self.saved_dims().iter().product())],
        }
    }

    /// The shape in which it is saved.
    pub fn saved_dims(&self) -> Vec<usize> {
        match self.part {
            Some(elements) => vec![elements],
            None => self.whole.clone(),
        }
    }

    /// The number of bytes of its first elements, which end a block of 8 bits if it has such.
    pub fn bytes_of(&self, elements: usize) -> usize {
        match self.form {
            Form::Plain(dtype) => elements * dtype.size_in_bytes(),
            Form::Coded(_) => bytes_of(elements),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.saved_dims().iter().product()) as u64
    }

    /// Brings a saved tensor in host memory into this form.
    pub fn pack(&self, saved: &Tensor) -> CandleResult<Tensor> {
        let Form::Coded(code) = self.form else {
            return saved.to_dtype(self.dtype())?.force_contiguous();
        };
        let values: Vec<f32> = saved.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let mut bytes = vec![0; bytes_of(values.len())];
        code.store(&values, &mut bytes);
        let len = bytes.len();
        Tensor::from_vec(bytes, len, &Device::Cpu)
    }

    /// Returns a tensor of this form, in host memory, as it is saved.
    pub fn unpack(&self, held: &Tensor) -> CandleResult<Tensor> {
        let Form::Coded(code) = self.form else {
            return Ok(held.clone());
        };
        let bytes: Vec<u8> = held.to_vec1()?;
        let dims = self.saved_dims();
        let mut values = vec![0.; dims.iter().product()];
        code.load(&bytes, &mut values);
        Tensor::from_vec(values, dims, &Device::Cpu)
    }
}

/// A parameter of an optimizer, and the elements of it whose state is kept here and which are updated here.
#[derive(Debug, Clone)]
pub struct Managed {
    pub name: String,
    pub var: Var,
    /// Where its noise begins, by its name: the same on every rank and after a resume, and different for each parameter.
    pub stream: u64,
    pub group: usize,
    /// The type that its update is computed in.
    pub full: DType,
    pub moments: Moments,
    /// Whether its group has moments of its own.
    pub has_own_moments: bool,
    /// The Var's first element, for candle's in-place operations: they allocate a list of axes, which is empty for a single element,
    /// and give access to the whole storage.
    pub handle: Tensor,
    /// The offset of its elements in that storage.
    pub start: usize,
    /// The number of its elements.
    pub len: usize,
    /// Those that are updated here, sorted and apart from each other: one range with all of them, or those in the shard.
    pub ranges: Vec<Range<usize>>,
    /// The tensors that the optimizer keeps for them, range after range: those of the rule, then the master weights.
    pub kept: Vec<Held>,
    /// Whether its moments and master weights are in host memory, although it is on a GPU.
    pub on_host: bool,
}

impl Managed {
    pub fn parameter(&self) -> Parameter {
        Parameter::new(&self.name, self.var.clone())
    }

    /// `moments` are those of the optimizer, and its group's own.
    pub fn new<R: Rule>(
        rule: &R,
        Parameter { name, var }: Parameter,
        group: usize,
        (moments, own): (Option<Moments>, Option<Moments>),
        halves: Halves,
    ) -> Result<Self> {
        let full = match var.dtype() {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            dtype => return Err(untrainable(&name, dtype)),
        };
        let moments = own.or(moments).unwrap_or(Moments::Float(full));
        let kept = rule.moments().iter();
        let kept = kept.map(|moment| Held::moment(*moment, var.dims(), moments, full));
        let master = Held::master(var.dims(), full);
        let has_master = halves == Halves::Masters && var.dtype() != full;
        let kept = kept.chain(has_master.then_some(master));
        let Some((start, end)) = var.layout().contiguous_offsets() else {
            return Err(invalid!(
                Optimizer,
                "parameter `{name}` is not contiguous: make the Var from `tensor.contiguous()?`"
            ));
        };
        let flat = var.as_detached_tensor().flatten_all()?;
        Ok(Self {
            handle: flat.narrow(0, 0, flat.elem_count().min(1))?,
            start,
            len: end - start,
            ranges: std::iter::once(0..end - start).collect(),
            kept: kept.collect(),
            on_host: false,
            stream: (name.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                // FNV-1a, because the standard library's hashes may change.
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            }),
            name,
            var,
            group,
            full,
            moments,
            has_own_moments: own.is_some(),
        })
    }

    /// Restricts it to these elements.
    pub fn restrict(&mut self, ranges: &[Range<usize>]) {
        self.ranges = ranges.to_vec();
        let part = Some(self.owned()).filter(|owned| *owned < self.len);
        self.kept.iter_mut().for_each(|held| held.part = part);
    }

    /// The number of elements that are updated here.
    pub fn owned(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// The values of these elements, in one row.
    pub fn values(&self) -> CandleResult<Tensor> {
        let values = self.var.as_detached_tensor().flatten_all()?;
        let parts = self.ranges.iter();
        let parts = parts.map(|range| values.narrow(0, range.start, range.len()));
        Tensor::cat(&parts.collect::<CandleResult<Vec<_>>>()?, 0)
    }

    /// Checks that its type is one that these options are for.
    pub fn check_options(&self, halves: Halves) -> Result<()> {
        let (full, parameter_dtype) = (self.full, self.var.dtype());
        let (dtype, is_kept) = match self.moments {
            Moments::Float(DType::BF16) => (DType::BF16, full == DType::F32),
            Moments::Float(dtype) => (dtype, dtype == full),
            Moments::EightBit => (DType::U8, full == DType::F32),
        };
        let name = &self.name;
        if !is_kept {
            return Err(invalid!(
                Optimizer,
                "moments of parameter `{name}`, which is {parameter_dtype:?}, cannot be {dtype:?}: they are f32, bf16 or of 8 bits, and f64 for f64 parameters"
            ));
        }
        if halves == Halves::Stochastic && parameter_dtype == DType::F16 {
            return Err(invalid!(
                Optimizer,
                "stochastic rounding is for bf16 parameters, and `{name}` is f16: use `master_weights()` with a loss scale"
            ));
        }
        Ok(())
    }

    /// `occupied` is the memory of all parameters, sorted.
    pub fn check(&self, gradient: &Tensor, occupied: &[usize]) -> Result<()> {
        let (var, name) = (&self.var, &self.name);
        check_shape(name, var, gradient)?;
        let is_half = matches!(var.dtype(), DType::F16 | DType::BF16);
        let (expected, found) = (var.dtype(), gradient.dtype());
        if found != expected && !(is_half && found == DType::F32) {
            return Err(invalid!(
                Optimizer,
                "the gradient of parameter `{name}` is {found:?}: it must be {expected:?} as the parameter, or f32 if that is f16 or bf16"
            ));
        }
        if !var.device().same_device(gradient.device()) {
            let [expected, found] = [var.device(), gradient.device()].map(Device::location);
            return Err(invalid!(
                Optimizer,
                "parameter `{name}` is on {expected:?}, its gradient on {found:?}"
            ));
        }
        // candle refuses the parameter's own memory. Another parameter's memory may be updated before it is read.
        if occupied.binary_search(&memory(gradient)).is_ok() {
            return Err(invalid!(
                Optimizer,
                "the gradient of parameter `{name}` is a parameter's own memory: pass a copy"
            ));
        }
        Ok(())
    }

    /// The tensors that the rule keeps for it: all but the master weights.
    pub fn by_rule(&self) -> &[Held] {
        match self.kept.as_slice() {
            [by_rule @ .., master] if master.name == MASTER => by_rule,
            all => all,
        }
    }

    /// Bytes of all tensors that are kept for it.
    pub fn bytes(&self) -> u64 {
        self.kept.iter().map(Held::bytes).sum()
    }

    /// Bytes of what moves to host memory with its moments, wherever it is: they and the master weights; 0 without moments.
    pub fn movable_bytes(&self) -> u64 {
        match self.by_rule() {
            [] => 0,
            _ => self.bytes(),
        }
    }

    /// Bytes of the tensors that are kept for it on its device. Those of one in host memory are all there.
    pub fn kept_bytes(&self) -> u64 {
        match self.on_host {
            true => 0,
            false => self.bytes(),
        }
    }

    /// Bytes that are kept for it in host memory, although it is on a GPU.
    pub fn host_bytes(&self) -> u64 {
        self.bytes() - self.kept_bytes()
    }
}

/// Checks that a gradient has its parameter's shape.
pub fn check_shape(name: &str, var: &Var, gradient: &Tensor) -> Result<()> {
    let (expected, found) = (var.shape(), gradient.shape());
    match found == expected {
        true => Ok(()),
        false => Err(invalid!(
            Optimizer,
            "the gradient of parameter `{name}` has shape {found:?}, not {expected:?}"
        )),
    }
}

/// The address of a tensor's storage: the same for all views of it, as long as it lives.
pub fn memory(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}
