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
    /// Of the whole parameter.
    pub kept: Kept,
    pub form: Form,
    /// The number of elements in one row that are held of it here; `None` if all are.
    pub part: Option<usize>,
}

impl Held {
    pub fn plain(kept: Kept, dtype: DType) -> Self {
        let form = Form::Plain(dtype);
        Self {
            kept,
            form,
            part: None,
        }
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
        Self {
            kept,
            form,
            part: None,
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
            None => self.kept.dims.clone(),
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
        code.load(&bytes, 0, &mut values);
        Tensor::from_vec(values, dims, &Device::Cpu)
    }
}
