use candle_core::{DType, Device, Result, Tensor};

use crate::optim::coded::{Code, Form, bytes_of};
use crate::optim::state_dict::MASTER;

/// How an optimizer keeps its moments; for [`FusedBuilder::moments`](super::FusedBuilder::moments).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Moments {
    /// In this type: `F32` or `BF16`, and `F64` for f64 parameters.
    Float(DType),
    /// In 8 bits: 1.016 bytes per element.
    ///
    /// After Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861): each block of 256 elements
    /// has its largest element in f32, and a byte for each element in the dynamic tree code, with a sign for a first moment and
    /// without for a second. Other than there, the sign of the largest element is kept with it, so that it is exact; moments are rounded
    /// at random, because 8 bits cannot tell the change of a step apart; and no second moment becomes 0 that was not, because a division
    /// by it would make a step of any size (in blocks whose largest element is at least 1e-30).
    ///
    /// Parameters with fewer than 4,096 elements keep f32, as in the paper; so norms and biases do.
    EightBit,
}

impl From<DType> for Moments {
    fn from(dtype: DType) -> Self {
        Self::Float(dtype)
    }
}

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
    pub fn pack(&self, saved: &Tensor) -> Result<Tensor> {
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
    pub fn unpack(&self, held: &Tensor) -> Result<Tensor> {
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
