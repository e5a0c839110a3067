use candle_core::{Error, Result, Tensor};

/// The inputs of a region: `&Tensor`, a tuple of up to six, an array or a slice.
pub trait RegionInputs: sealed::Inputs {}

/// The outputs of a region: a tensor, a tuple of up to six, an array or a `Vec`.
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

/// The type of one element of a tuple, for each letter of the macro.
type One<const LETTER: char> = Tensor;

macro_rules! tuple {
    ($($letter:ident $char:literal),+) => {
        impl sealed::Inputs for ($(&One<$char>,)+) {
            type Given<'a> = ($(&'a One<$char>,)+);

            fn tensors(&self) -> Vec<Tensor> {
                let ($($letter,)+) = *self;
                vec![$($letter.clone()),+]
            }

            fn give(tensors: &[Tensor]) -> Result<Self::Given<'_>> {
                match tensors {
                    [$($letter),+] => Ok(($($letter,)+)),
                    _ => Err(miscounted()),
                }
            }
        }

        impl sealed::Outputs for ($(One<$char>,)+) {
            fn into_tensors(self) -> Vec<Tensor> {
                let ($($letter,)+) = self;
                vec![$($letter),+]
            }

            fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
                match <[Tensor; _]>::try_from(tensors) {
                    Ok([$($letter),+]) => Ok(($($letter,)+)),
                    Err(_) => Err(miscounted()),
                }
            }
        }
    };
}

tuple!(a 'a');
tuple!(a 'a', b 'b');
tuple!(a 'a', b 'b', c 'c');
tuple!(a 'a', b 'b', c 'c', d 'd');
tuple!(a 'a', b 'b', c 'c', d 'd', e 'e');
tuple!(a 'a', b 'b', c 'c', d 'd', e 'e', f 'f');
