use candle_core::{Error, Result, Tensor};

/// The inputs of a region: `&Tensor`, a tuple of up to six, an array or a slice.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::recompute;
///
/// let a = Tensor::ones(2, DType::F32, &Device::Cpu)?;
/// let b = Tensor::ones(2, DType::F32, &Device::Cpu)?;
/// let of_tuple = recompute((&a, &b), |(a, b)| a + b)?;
/// let tensors = [a, b];
/// let of_slice = recompute(&tensors[..], |tensors| &tensors[0] + &tensors[1])?;
/// assert_eq!(of_tuple.to_vec1::<f32>()?, [2.; 2]);
/// assert_eq!(of_slice.to_vec1::<f32>()?, [2.; 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait RegionInputs: sealed::Inputs {}

/// The outputs of a region: a tensor, a tuple of up to six, an array or a `Vec`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::recompute;
///
/// let x = Tensor::full(3f32, 2, &Device::Cpu)?;
/// let (square, double) = recompute(&x, |x| Ok((x.sqr()?, (x * 2.)?)))?;
/// assert_eq!(square.to_vec1::<f32>()?, [9.; 2]);
/// let all: Vec<Tensor> = recompute(&x, |x| (0..3u8).map(|i| x * f64::from(i)).collect())?;
/// assert_eq!((all.len(), double.to_vec1::<f32>()?), (3, vec![6.; 2]));
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait RegionOutputs: sealed::Outputs {}

impl<T: sealed::Inputs> RegionInputs for T {}
impl<T: sealed::Outputs> RegionOutputs for T {}

pub(super) mod sealed {
    use super::{Result, Tensor};

    pub trait Inputs {
        /// What the closure receives.
        type Given<'a>;

        fn tensors(&self) -> Vec<Tensor>;

        /// Gives tensors that [`tensors`](Self::tensors) returned, or others in their place.
        fn give(tensors: &[Tensor]) -> Result<Self::Given<'_>>;
    }

    pub trait Outputs: Sized {
        fn into_tensors(self) -> Vec<Tensor>;

        fn from_tensors(tensors: Vec<Tensor>) -> Result<Self>;
    }
}

fn miscounted() -> Error {
    Error::Msg("recompute: the number of tensors has changed".to_owned()).bt()
}

impl sealed::Inputs for &Tensor {
    type Given<'a> = &'a Tensor;

    fn tensors(&self) -> Vec<Tensor> {
        vec![Tensor::clone(self)]
    }

    fn give(tensors: &[Tensor]) -> Result<&Tensor> {
        tensors.first().ok_or_else(miscounted)
    }
}

impl sealed::Inputs for &[Tensor] {
    type Given<'a> = &'a [Tensor];

    fn tensors(&self) -> Vec<Tensor> {
        self.to_vec()
    }

    fn give(tensors: &[Tensor]) -> Result<&[Tensor]> {
        Ok(tensors)
    }
}

impl<const N: usize> sealed::Inputs for [&Tensor; N] {
    type Given<'a> = &'a [Tensor; N];

    fn tensors(&self) -> Vec<Tensor> {
        self.map(Tensor::clone).into()
    }

    fn give(tensors: &[Tensor]) -> Result<&[Tensor; N]> {
        tensors.try_into().map_err(|_| miscounted())
    }
}

impl sealed::Outputs for Tensor {
    fn into_tensors(self) -> Vec<Tensor> {
        vec![self]
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        tensors.into_iter().next().ok_or_else(miscounted)
    }
}

impl sealed::Outputs for Vec<Tensor> {
    fn into_tensors(self) -> Vec<Tensor> {
        self
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        Ok(tensors)
    }
}

impl<const N: usize> sealed::Outputs for [Tensor; N] {
    fn into_tensors(self) -> Vec<Tensor> {
        self.into()
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        tensors.try_into().map_err(|_| miscounted())
    }
}

/// Tuples are arrays by the standard library's conversions.
macro_rules! tuple {
    ($count:literal: $($tensor:ident)+) => {
        impl sealed::Inputs for ($(&$tensor,)+) {
            type Given<'a> = ($(&'a $tensor,)+);

            fn tensors(&self) -> Vec<Tensor> {
                sealed::Inputs::tensors(&<[&Tensor; $count]>::from(*self))
            }

            fn give(tensors: &[Tensor]) -> Result<Self::Given<'_>> {
                let tensors = <[&Tensor; $count] as sealed::Inputs>::give(tensors)?;
                Ok(tensors.each_ref().into())
            }
        }

        impl sealed::Outputs for ($($tensor,)+) {
            fn into_tensors(self) -> Vec<Tensor> {
                <[Tensor; $count]>::from(self).into()
            }

            fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
                let tensors = <[Tensor; $count] as sealed::Outputs>::from_tensors(tensors)?;
                Ok(tensors.into())
            }
        }
    };
}

tuple!(1: Tensor);
tuple!(2: Tensor Tensor);
tuple!(3: Tensor Tensor Tensor);
tuple!(4: Tensor Tensor Tensor Tensor);
tuple!(5: Tensor Tensor Tensor Tensor Tensor);
tuple!(6: Tensor Tensor Tensor Tensor Tensor Tensor);
