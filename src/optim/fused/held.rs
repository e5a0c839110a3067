use candle_core::{DType, Device, Result, Tensor};

use crate::optim::Moments;
use crate::optim::coded::{Code, Form, bytes_of};
use crate::optim::rule::{Kept, Sign};

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
    pub kept: Kept,
    pub form: Form,
}

impl Held {
    pub fn plain(kept: Kept, dtype: DType) -> Self {
        let form = Form::Plain(dtype);
        Self { kept, form }
    }

    /// `full` is the type that the rule computes in.
    pub fn new(kept: Kept, moments: Moments, full: DType) -> Self {
        let form = match (kept.moment, moments) {
            (Some(_), Moments::Float(dtype)) => Form::Plain(dtype),
            (Some(sign), Moments::EightBit) if kept.elements() >= FEW => Form::Coded(match sign {
                Sign::Either => Code::Signed,
                Sign::Positive => Code::Unsigned,
            }),
            _ => Form::Plain(full),
        };
        Self { kept, form }
    }

    /// The type of the tensor in memory.
    pub fn dtype(&self) -> DType {
        match self.form {
            Form::Plain(dtype) => dtype,
            Form::Coded(_) => DType::U8,
        }
    }

    /// The type in which it is saved.
    pub fn saved_dtype(&self) -> DType {
        match self.form {
            Form::Plain(dtype) => dtype,
            Form::Coded(_) => DType::F32,
        }
    }

    /// The shape of the tensor in memory.
    pub fn dims(&self) -> Vec<usize> {
        match self.form {
            Form::Plain(_) => self.kept.dims.clone(),
            Form::Coded(_) => vec![bytes_of(self.kept.elements())],
        }
    }

    pub fn bytes(&self) -> u64 {
        let elements: usize = self.dims().iter().product();
        (elements * self.dtype().size_in_bytes()) as u64
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
    pub fn unpack(&self, held: Tensor) -> Result<Tensor> {
        let Form::Coded(code) = self.form else {
            return Ok(held);
        };
        let bytes: Vec<u8> = held.to_vec1()?;
        let mut values = vec![0.; self.kept.elements()];
        code.load(&bytes, 0, &mut values);
        Tensor::from_vec(values, &*self.kept.dims, &Device::Cpu)
    }
}
