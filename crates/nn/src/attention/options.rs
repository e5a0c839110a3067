use candle_core::Tensor;

/// Options of [`attention`](super::attention): which keys a query sees, and how scores become weights.
///
/// The default is attention of each query to all keys, with scores multiplied by 1/√d.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::{Attention, attention};
///
/// # fn main() -> candle_core::Result<()> {
/// let q = Tensor::randn(0f32, 1., (2, 8, 10, 16), &Device::Cpu)?; // [batch, heads, queries, width]
/// let k = Tensor::randn(0f32, 1., (2, 4, 10, 16), &Device::Cpu)?; // 2 query heads share a key head
/// let v = Tensor::randn(0f32, 1., (2, 4, 10, 16), &Device::Cpu)?;
/// let y = attention(&q, &k, &v, &Attention::default().causal().dropout(0.1))?;
/// assert_eq!(y.dims(), [2, 8, 10, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Attention {
    pub(super) causal: bool,
    pub(super) offset: Option<usize>,
    pub(super) window: Option<[usize; 2]>,
    pub(super) alibi: Option<Tensor>,
    pub(super) lengths: Option<[Vec<usize>; 2]>,
    pub(super) mask: Option<Tensor>,
    pub(super) scale: Option<f64>,
    pub(super) softcap: Option<f64>,
    pub(super) dropout: f64,
}

impl Attention {
    /// Each query sees the keys up to its own position, and the last query is at the last key. With as many keys as queries, query i
    /// sees keys 0 to i. With s keys and t queries it sees keys 0 to i + s − t: after t − s queries that see nothing, if there are
    /// more queries than keys.
    pub fn causal(mut self) -> Self {
        (self.causal, self.offset) = (true, None);
        self
    }

    /// Query i is at key i + `offset` and sees keys 0 to i + `offset`, if there are so many: the first query follows `offset` cached
    /// keys.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// // Two new tokens after 10 that are cached.
    /// let q = Tensor::randn(0f32, 1., (1, 4, 2, 8), &Device::Cpu)?; // [batch, heads, queries, width]
    /// let k = Tensor::randn(0f32, 1., (1, 4, 12, 8), &Device::Cpu)?;
    /// let y = attention(&q, &k, &k, &Attention::default().causal_from(10))?;
    /// assert_eq!(y.dims(), [1, 4, 2, 8]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn causal_from(mut self, offset: usize) -> Self {
        (self.causal, self.offset) = (true, Some(offset));
        self
    }

    /// Each query sees `left` keys before its own position and `right` keys after it, none of them if it is also causal. Without
    /// [`causal_from`](Self::causal_from), the last query is at the last key.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// // Each token sees itself and the 127 before it.
    /// let options = Attention::default().causal().window(127, 0);
    /// let q = Tensor::randn(0f32, 1., (1, 4, 300, 8), &Device::Cpu)?;
    /// assert_eq!(attention(&q, &q, &q, &options)?.dims(), q.dims());
    /// # Ok(())
    /// # }
    /// ```
    pub fn window(mut self, left: usize, right: usize) -> Self {
        self.window = Some([left, right]);
        self
    }

    /// Subtracts slope · distance between query and key from the scores, with a slope for each head (ALiBi: Press, Smith and Lewis,
    /// 2021). Positions are those of [`window`](Self::window). `slopes` (heads) get no gradient.
    pub fn alibi(mut self, slopes: &Tensor) -> Self {
        self.alibi = Some(slopes.clone());
        self
    }

    /// The positions are those of several sequences, one after the other, and a query sees keys of its own sequence only. Each
    /// sequence has a number of queries and a number of keys. All other options, but a mask, apply within each sequence.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// // Texts of 3 and 5 tokens in one sample, which do not see each other.
    /// let options = Attention::default().causal().lengths(&[3, 5], &[3, 5]);
    /// let q = Tensor::randn(0f32, 1., (1, 4, 8, 16), &Device::Cpu)?; // [batch, heads, queries, width]
    /// assert_eq!(attention(&q, &q, &q, &options)?.dims(), q.dims());
    /// # Ok(())
    /// # }
    /// ```
    pub fn lengths(mut self, queries: &[usize], keys: &[usize]) -> Self {
        self.lengths = Some([queries.to_vec(), keys.to_vec()]);
        self
    }

    /// Adds `mask` to the scores, after scaling and soft capping: −∞ hides a key, other numbers are a bias. Its shape can be
    /// broadcast to (batch, heads, queries, keys), its type is that of the queries.
    ///
    /// If the mask leads to a Var, it gets its gradient.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// // The second of two samples has a key less.
    /// let hidden = f32::NEG_INFINITY;
    /// let mask = Tensor::new(&[[0f32, 0., 0.], [0., 0., hidden]], &Device::Cpu)?;
    /// let mask = mask.reshape((2, 1, 1, 3))?; // [batch, heads, queries, keys]
    /// let q = Tensor::randn(0f32, 1., (2, 4, 3, 8), &Device::Cpu)?;
    /// assert_eq!(attention(&q, &q, &q, &Attention::default().mask(&mask))?.dims(), q.dims());
    /// # Ok(())
    /// # }
    /// ```
    pub fn mask(mut self, mask: &Tensor) -> Self {
        self.mask = Some(mask.clone());
        self
    }

    /// What scores are multiplied by, instead of 1/√d.
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Keeps scores between −`cap` and `cap`, by cap · tanh(score / cap) after scaling (Gemma 2).
    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Sets each weight to zero with probability `rate` and divides the others by 1 − `rate`. Which ones depends on the weight's
    /// position and, within [`seeded`](crate::seeded), on its seed and the number of draws before, so a retry and recomputation
    /// drop the same weights; elsewhere each call draws a fresh seed.
    pub fn dropout(mut self, rate: f64) -> Self {
        self.dropout = rate;
        self
    }
}
