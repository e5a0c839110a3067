use candle_core::Tensor;
use candle_core::backprop::GradStore;

use super::optimizer::Fused;
use crate::error::{Remedy, Result};
use crate::optim::{Algorithm, Commit, Committed, Parameter, StateDict};

impl<A: Algorithm> Commit for Fused<A> {
    fn parameters(&self) -> &[Parameter] {
        Fused::parameters(self)
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        Fused::commit(self, gradients)
    }

    fn scale_loss(&self, loss: &Tensor) -> Result<Tensor> {
        Fused::scale_loss(self, loss)
    }

    fn takes_f32(&self) -> bool {
        true
    }

    fn remedies(&self) -> Vec<Remedy> {
        Fused::remedies(self)
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(Fused::state_bytes(self))
    }

    fn state(&self) -> Result<StateDict> {
        Fused::state(self)
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        Fused::load_state(self, state)
    }
}
