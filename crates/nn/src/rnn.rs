//! Recurrent layers as in [`candle_nn::rnn`]. f16 and bf16 are computed in f32 and rounded at the end, so that gradients are summed over
//! samples and positions in f32.
//!
//! Parameters have PyTorch's names and layouts, with one layer and direction for each [`LSTM`] and one layer for each [`GRU`]. Methods
//! are those of the trait [`RNN`]; input, state and weights have one type, which is that of the result. Positions are computed one
//! after the other, and the graph keeps the results of each.

use candle_core::{DType, Device, Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

pub use candle_nn::rnn::*;

use super::conv::widened;
use super::linear::Linear;
use super::ops::sigmoid;

/// What a layer multiplies its input and its state by. Each product has the rows of all gates.
#[derive(Clone, Debug)]
struct Cell {
    of_input: Linear,
    of_state: Linear,
    hidden_dim: usize,
}

impl Cell {
    /// The parameters of `gates` gates, whose names end with `suffix`. `inits` are those of both weights and of both biases.
    fn new(
        gates: usize,
        (in_dim, hidden_dim): (usize, usize),
        inits: ([Init; 2], [Option<Init>; 2]),
        suffix: &str,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let layer = |columns, weight: Init, bias: Option<Init>, name: &str| -> Result<Linear> {
            let rows = gates * hidden_dim;
            let weight =
                vb.get_with_hints((rows, columns), &format!("weight_{name}_{suffix}"), weight)?;
            let bias =
                bias.map(|bias| vb.get_with_hints(rows, &format!("bias_{name}_{suffix}"), bias));
            Ok(Linear::new(weight, bias.transpose()?))
        };
        let ([input, state], [input_bias, state_bias]) = inits;
        Ok(Self {
            of_input: layer(in_dim, input, input_bias, "ih")?,
            of_state: layer(hidden_dim, state, state_bias, "hh")?,
            hidden_dim,
        })
    }

    fn dtype(&self) -> DType {
        self.of_input.weight().dtype()
    }

    fn device(&self) -> &Device {
        self.of_input.weight().device()
    }

    fn zeros(&self, batch: usize) -> Result<Tensor> {
        Tensor::zeros((batch, self.hidden_dim), self.dtype(), self.device())
    }

    /// The same in the type that sums are computed in.
    fn widened(&self) -> Result<Self> {
        let wide = widened(self.dtype());
        let layer = |layer: &Linear| -> Result<Linear> {
            let bias = layer.bias().map(|bias| bias.to_dtype(wide));
            Ok(Linear::new(
                layer.weight().to_dtype(wide)?,
                bias.transpose()?,
            ))
        };
        Ok(Self {
            of_input: layer(&self.of_input)?,
            of_state: layer(&self.of_state)?,
            hidden_dim: self.hidden_dim,
        })
    }

    /// The states after each position of an input (batch, positions, features). `next` maps the cell, a position's features and the
    /// tensors of the state before it to those of the state after it; all in the type that sums are computed in.
    fn states<const N: usize>(
        &self,
        input: &Tensor,
        first: [&Tensor; N],
        next: impl Fn(&Self, &Tensor, &[Tensor; N]) -> Result<[Tensor; N]>,
    ) -> Result<Vec<[Tensor; N]>> {
        let dtype = self.dtype();
        for given in first.into_iter().chain([input]) {
            if given.dtype() != dtype {
                bail!(
                    "rnn: the input or the state is {:?}, the weights are {dtype:?}",
                    given.dtype()
                )
            }
        }
        let to = |tensors: [&Tensor; N], dtype| -> Result<[Tensor; N]> {
            let mut converted = tensors.map(Tensor::clone);
            for tensor in &mut converted {
                *tensor = tensor.to_dtype(dtype)?;
            }
            Ok(converted)
        };
        let (cell, wide) = (self.widened()?, widened(dtype));
        let input = input.to_dtype(wide)?;
        let (_, positions, _) = input.dims3()?;
        let mut state = to(first, wide)?;
        let mut states = Vec::with_capacity(positions);
        for position in 0..positions {
            let features = input.narrow(1, position, 1)?.squeeze(1)?.contiguous()?;
            state = next(&cell, &features, &state)?;
            states.push(to(state.each_ref(), dtype)?);
        }
        Ok(states)
    }

    /// The state after one position, of features (batch, features).
    fn state<const N: usize>(
        &self,
        input: &Tensor,
        before: [&Tensor; N],
        next: impl Fn(&Self, &Tensor, &[Tensor; N]) -> Result<[Tensor; N]>,
    ) -> Result<[Tensor; N]> {
        let state = self.states(&input.unsqueeze(1)?, before, next)?.pop();
        state.ok_or_else(|| candle_core::Error::Msg("rnn: no position".to_owned()).bt())
    }
}

/// A long short-term memory (Hochreiter and Schmidhuber, 1997), as [`candle_nn::LSTM`]: with the gates i, f, o and the value g of a
/// position, c becomes σ(f) · c + σ(i) · tanh(g), and h becomes σ(o) · tanh(c).
///
/// An input is (batch, positions, features), a state is (batch, hidden). It keeps what its operations keep, for each position.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{LSTMConfig, RNN, VarBuilder, VarMap, lstm};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let lstm = lstm(8, 16, LSTMConfig::default(), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, positions, features]
/// let states = lstm.seq(&x)?; // one for each position
/// assert_eq!((states.len(), states[4].h().dims()), (5, &[2, 16][..]));
/// assert_eq!(lstm.states_to_tensor(&states)?.dims(), [2, 5, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LSTM {
    cell: Cell,
    config: LSTMConfig,
}

impl LSTM {
    /// Makes a layer, with parameters named and initialized as by [`candle_nn::LSTM::new`]: `weight_ih_l0` (4 · hidden, input),
    /// `weight_hh_l0` (4 · hidden, hidden), and `bias_ih_l0` and `bias_hh_l0` (4 · hidden) if `config` has them. The rows are those of
    /// the input gate, the forget gate, the new value and the output gate, in this order.
    ///
    /// The index of the layer and its direction in `config` change the names only: for [`Direction::Backward`], reverse the positions
    /// of the input.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom_nn::rnn::{Direction, LSTM, LSTMConfig};
    /// use candle_headroom_nn::{VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let config = LSTMConfig { layer_idx: 1, direction: Direction::Backward, ..Default::default() };
    /// LSTM::new(8, 16, config, vb.pp("lstm"))?;
    /// let vars = varmap.data().lock().unwrap();
    /// assert_eq!(vars["lstm.weight_ih_l1_reverse"].dims(), [4 * 16, 8]); // of four gates
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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
        let inits = (
            [config.w_ih_init, config.w_hh_init],
            [config.b_ih_init, config.b_hh_init],
        );
        let cell = Cell::new(4, (in_dim, hidden_dim), inits, &suffix, &vb)?;
        Ok(Self { cell, config })
    }

    /// The initializations, the index of the layer and its direction.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_headroom_nn::{LSTM, LSTMConfig, VarBuilder, VarMap};
    /// # let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    /// let lstm = LSTM::new(8, 16, LSTMConfig::default(), vb)?;
    /// assert_eq!(lstm.config().layer_idx, 0);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }

    fn next(cell: &Cell, x: &Tensor, [h, c]: &[Tensor; 2]) -> Result<[Tensor; 2]> {
        let gates = (cell.of_input.forward(x)? + cell.of_state.forward(h)?)?.chunk(4, 1)?;
        let [input, forget, value, output] = gates.as_slice() else {
            bail!("lstm: {} gates", gates.len())
        };
        let c = ((sigmoid(forget)? * c)? + (sigmoid(input)? * value.tanh()?)?)?;
        let h = (sigmoid(output)? * c.tanh()?)?;
        Ok([h, c])
    }
}

impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.cell.zeros(batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        let [h, c] = self.cell.state(input, [&state.h, &state.c], Self::next)?;
        Ok(LSTMState { h, c })
    }

    fn seq_init(&self, input: &Tensor, state: &LSTMState) -> Result<Vec<LSTMState>> {
        let states = self.cell.states(input, [&state.h, &state.c], Self::next)?;
        Ok(states
            .into_iter()
            .map(|[h, c]| LSTMState { h, c })
            .collect())
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::stack(&states, 1)
    }
}

/// Makes a [`LSTM`], with parameters named and initialized as by [`candle_nn::lstm`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{LSTMConfig, RNN, VarBuilder, VarMap, lstm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let lstm = lstm(8, 16, LSTMConfig::default(), vb)?;
/// let first = lstm.zero_state(2)?; // of two sequences
/// let x = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [batch, features] of one position
/// let next = lstm.step(&x, &first)?;
/// assert_eq!(next.h().to_vec2::<f32>()?, [[0.; 16]; 2]); // biases begin with 0
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

/// A gated recurrent unit (Cho et al. 2014, arXiv 1406.1078), as [`candle_nn::GRU`]: with the gates r and z and the products n of the
/// input and m of the state, h becomes σ(z) · h + (1 − σ(z)) · tanh(n + σ(r) · m), as in PyTorch.
///
/// An input is (batch, positions, features), a state is (batch, hidden). It keeps what its operations keep, for each position.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{GRUConfig, RNN, VarBuilder, VarMap, gru};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let gru = gru(8, 16, GRUConfig::default(), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, positions, features]
/// let states = gru.seq(&x)?; // one for each position
/// assert_eq!((states.len(), states[4].h().dims()), (5, &[2, 16][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GRU {
    cell: Cell,
    config: GRUConfig,
}

impl GRU {
    /// Makes a layer, with parameters named and initialized as by [`candle_nn::GRU::new`]: `weight_ih_l0` (3 · hidden, input),
    /// `weight_hh_l0` (3 · hidden, hidden), and `bias_ih_l0` and `bias_hh_l0` (3 · hidden) if `config` has them. The rows are those of
    /// the reset gate, the update gate and the new state, in this order.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom_nn::{GRU, GRUConfig, VarBuilder, VarMap};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// GRU::new(8, 16, GRUConfig::default(), vb.pp("gru"))?;
    /// let vars = varmap.data().lock().unwrap();
    /// assert_eq!(vars["gru.weight_ih_l0"].dims(), [3 * 16, 8]); // of three gates
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the `VarBuilder`.
    pub fn new(
        in_dim: usize,
        hidden_dim: usize,
        config: GRUConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let inits = (
            [config.w_ih_init, config.w_hh_init],
            [config.b_ih_init, config.b_hh_init],
        );
        let cell = Cell::new(3, (in_dim, hidden_dim), inits, "l0", &vb)?;
        Ok(Self { cell, config })
    }

    /// The initializations.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_headroom_nn::{GRU, GRUConfig, VarBuilder, VarMap};
    /// # let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    /// let gru = GRU::new(8, 16, GRUConfig::default_no_bias(), vb)?;
    /// assert!(gru.config().b_ih_init.is_none());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }

    fn next(cell: &Cell, x: &Tensor, [h]: &[Tensor; 1]) -> Result<[Tensor; 1]> {
        let of_input = cell.of_input.forward(x)?.chunk(3, 1)?;
        let of_state = cell.of_state.forward(h)?.chunk(3, 1)?;
        let ([reset, update, new], [reset_state, update_state, new_state]) =
            (of_input.as_slice(), of_state.as_slice())
        else {
            bail!("gru: {} gates", of_input.len())
        };
        let reset = sigmoid(&(reset + reset_state)?)?;
        let update = sigmoid(&(update + update_state)?)?;
        let new = (new + (reset * new_state)?)?.tanh()?;
        let h = ((&update * h)? - ((&update - 1.)? * new)?)?;
        Ok([h])
    }
}

impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        let h = self.cell.zeros(batch_dim)?;
        Ok(GRUState { h })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        let [h] = self.cell.state(input, [&state.h], Self::next)?;
        Ok(GRUState { h })
    }

    fn seq_init(&self, input: &Tensor, state: &GRUState) -> Result<Vec<GRUState>> {
        let states = self.cell.states(input, [&state.h], Self::next)?;
        Ok(states.into_iter().map(|[h]| GRUState { h }).collect())
    }

    /// Joins the states side by side: (batch, positions · hidden).
    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::cat(&states, 1)
    }
}

/// Makes a [`GRU`], with parameters named and initialized as by [`candle_nn::gru`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{GRUConfig, RNN, VarBuilder, VarMap, gru};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let gru = gru(8, 16, GRUConfig::default(), vb)?;
/// let first = gru.zero_state(2)?; // of two sequences
/// let x = Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?; // [batch, features] of one position
/// let next = gru.step(&x, &first)?;
/// assert_eq!(next.h().to_vec2::<f32>()?, [[0.; 16]; 2]); // biases begin with 0
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}
