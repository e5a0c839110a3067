//! Recurrent layers of [`candle_nn::rnn`]. f16 and bf16 are computed in f32 and rounded at the end, so that gradients are summed over
//! samples and positions in f32.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

pub use candle_nn::rnn::*;

use super::conv::widened;

/// The parameters of a layer, by their names.
#[derive(Clone, Debug)]
struct Parameters {
    tensors: HashMap<String, Tensor>,
    in_dim: usize,
    hidden_dim: usize,
    dtype: DType,
    device: Device,
}

impl Parameters {
    /// Those of `gates` gates, whose names end with `suffix`. `inits` are those of weight and bias, for the input and for the state.
    fn new(
        gates: usize,
        (in_dim, hidden_dim): (usize, usize),
        inits: [(Init, Option<Init>); 2],
        suffix: &str,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let rows = gates * hidden_dim;
        let mut tensors = HashMap::new();
        let parts = [("ih", in_dim), ("hh", hidden_dim)].into_iter().zip(inits);
        for ((part, columns), (weight, bias)) in parts {
            let name = format!("weight_{part}_{suffix}");
            let weight = vb.get_with_hints((rows, columns), &name, weight)?;
            tensors.insert(name, weight);
            if let Some(bias) = bias {
                let name = format!("bias_{part}_{suffix}");
                let bias = vb.get_with_hints(rows, &name, bias)?;
                tensors.insert(name, bias);
            }
        }
        Ok(Self {
            tensors,
            in_dim,
            hidden_dim,
            dtype: vb.dtype(),
            device: vb.device().clone(),
        })
    }

    fn zeros(&self, batch: usize) -> Result<Tensor> {
        Tensor::zeros((batch, self.hidden_dim), self.dtype, &self.device)
    }

    /// candle's layer, in the type that sums are computed in. The graph leads to the parameters.
    fn wide<L>(&self, new: impl Fn(usize, usize, VarBuilder) -> Result<L>) -> Result<L> {
        let (tensors, wide) = (self.tensors.clone(), widened(self.dtype));
        let vb = VarBuilder::from_tensors(tensors, wide, &self.device);
        new(self.in_dim, self.hidden_dim, vb)
    }

    /// An input or a state in that type.
    fn widen(&self, given: &Tensor) -> Result<Tensor> {
        if given.dtype() != self.dtype {
            bail!(
                "rnn: the input or the state is {:?}, the weights are {:?}",
                given.dtype(),
                self.dtype
            )
        }
        given.to_dtype(widened(self.dtype))
    }

    fn round(&self, state: &Tensor) -> Result<Tensor> {
        state.to_dtype(self.dtype)
    }
}

/// A long short-term memory, as [`candle_nn::LSTM`].
#[derive(Clone, Debug)]
pub struct LSTM {
    parameters: Parameters,
    config: LSTMConfig,
}

impl LSTM {
    /// Makes a layer, with parameters named and initialized as by [`candle_nn::LSTM::new`].
    ///
    /// # Errors
    /// Those of the `VarBuilder`.
    pub fn new(
        in_dim: usize,
        hidden_dim: usize,
        config: LSTMConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let direction = match config.direction {
            Direction::Forward => "",
            Direction::Backward => "_reverse",
        };
        let suffix = format!("l{}{direction}", config.layer_idx);
        let inits = [
            (config.w_ih_init, config.b_ih_init),
            (config.w_hh_init, config.b_hh_init),
        ];
        let parameters = Parameters::new(4, (in_dim, hidden_dim), inits, &suffix, &vb)?;
        Ok(Self { parameters, config })
    }

    /// The initializations, the index of the layer and its direction.
    #[must_use]
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }

    fn wide(&self) -> Result<candle_nn::LSTM> {
        self.parameters
            .wide(|inputs, outputs, vb| candle_nn::LSTM::new(inputs, outputs, self.config, vb))
    }
}

fn each(state: &LSTMState, convert: impl Fn(&Tensor) -> Result<Tensor>) -> Result<LSTMState> {
    Ok(LSTMState::new(convert(&state.h)?, convert(&state.c)?))
}

impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.parameters.zeros(batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        let widen = |given: &Tensor| self.parameters.widen(given);
        let next = self.wide()?.step(&widen(input)?, &each(state, widen)?)?;
        each(&next, |state| self.parameters.round(state))
    }

    fn seq_init(&self, input: &Tensor, state: &LSTMState) -> Result<Vec<LSTMState>> {
        let widen = |given: &Tensor| self.parameters.widen(given);
        let first = each(state, widen)?;
        let states = self.wide()?.seq_init(&widen(input)?, &first)?;
        let round = |state: &LSTMState| each(state, |state| self.parameters.round(state));
        states.iter().map(round).collect()
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::stack(&states, 1)
    }
}

/// Makes a [`LSTM`], with parameters named and initialized as by [`candle_nn::lstm`].
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

/// A gated recurrent unit, as [`candle_nn::GRU`].
#[derive(Clone, Debug)]
pub struct GRU {
    parameters: Parameters,
    config: GRUConfig,
}

impl GRU {
    /// Makes a layer, with parameters named and initialized as by [`candle_nn::GRU::new`].
    ///
    /// # Errors
    /// Those of the `VarBuilder`.
    pub fn new(
        in_dim: usize,
        hidden_dim: usize,
        config: GRUConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let inits = [
            (config.w_ih_init, config.b_ih_init),
            (config.w_hh_init, config.b_hh_init),
        ];
        let parameters = Parameters::new(3, (in_dim, hidden_dim), inits, "l0", &vb)?;
        Ok(Self { parameters, config })
    }

    /// The initializations.
    #[must_use]
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }

    fn wide(&self) -> Result<candle_nn::GRU> {
        self.parameters
            .wide(|inputs, outputs, vb| candle_nn::GRU::new(inputs, outputs, self.config, vb))
    }
}

impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        let h = self.parameters.zeros(batch_dim)?;
        Ok(GRUState { h })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        let (input, h) = (
            self.parameters.widen(input)?,
            self.parameters.widen(&state.h)?,
        );
        let next = self.wide()?.step(&input, &GRUState { h })?;
        let h = self.parameters.round(&next.h)?;
        Ok(GRUState { h })
    }

    fn seq_init(&self, input: &Tensor, state: &GRUState) -> Result<Vec<GRUState>> {
        let (input, h) = (
            self.parameters.widen(input)?,
            self.parameters.widen(&state.h)?,
        );
        let states = self.wide()?.seq_init(&input, &GRUState { h })?;
        let round = |state: &GRUState| -> Result<GRUState> {
            let h = self.parameters.round(&state.h)?;
            Ok(GRUState { h })
        };
        states.iter().map(round).collect()
    }

    /// Joins the states side by side: (batch, positions · hidden).
    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::cat(&states, 1)
    }
}

/// Makes a [`GRU`], with parameters named and initialized as by [`candle_nn::gru`].
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}
