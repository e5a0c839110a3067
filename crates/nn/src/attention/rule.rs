//! Options, and what they come to with the sizes once both are checked.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

pub use crate::kernel::sum_type as wide;
use crate::kernel::{philox, same_device, same_type};
use crate::seed::{derive, is_frozen};

pub const NAME: &str = "attention";

/// Options of [`attention`](super::attention): which keys a query sees, and how scores become weights.
///
/// The default is attention of each query to all keys, with scores multiplied by 1/√d. A key has to be seen by all options that are
/// given. Values out of range and shapes that do not fit are errors of [`attention`](super::attention()).
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
    pub(super) chunk: Option<usize>,
}

impl Attention {
    /// Each query sees the keys up to its own position, and the last query is at the last key. With as many keys as queries, query i
    /// sees keys 0 to i. With s keys and t queries it sees keys 0 to i + s − t: after t − s queries that see nothing, if there are
    /// more queries than keys.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// let q = Tensor::zeros((1, 1, 2, 4), DType::F32, &Device::Cpu)?; // [batch, heads, queries, width]
    /// let v = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?; // of two keys
    /// let y = attention(&q, &q, &v, &Attention::default().causal())?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 2.]); // the second query sees both keys
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// let q = Tensor::zeros((1, 1, 2, 4), DType::F32, &Device::Cpu)?; // [batch, heads, queries, width]
    /// let v = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?; // of two keys
    /// let slopes = Tensor::new(&[200f32], &Device::Cpu)?; // of one head, too steep for any other position
    /// let y = attention(&q, &q, &v, &Attention::default().alibi(&slopes))?.flatten_all()?;
    /// assert_eq!(y.to_vec1::<f32>()?, [1., 3.]); // each query sees its own position
    /// # Ok::<(), candle_core::Error>(())
    /// ```
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

    /// What scores are multiplied by, instead of 1/√d for queries and keys of width d. Finite.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// let q = Tensor::randn(0f32, 1., (1, 2, 5, 64), &Device::Cpu)?; // [batch, heads, queries, width]
    /// let values = |options: &Attention| attention(&q, &q, &q, options)?.flatten_all()?.to_vec1::<f32>();
    /// let scaled = values(&Attention::default().scale(0.125))?;
    /// assert_eq!(scaled, values(&Attention::default())?); // 1/√64
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Keeps scores between −`cap` and `cap`, by cap · tanh(score / cap) after scaling (Gemma 2, arXiv 2408.00118). Positive and
    /// finite.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// let q = Tensor::full(8f32, (1, 1, 1, 4), &Device::Cpu)?; // [batch, heads, queries, width]
    /// let k = Tensor::cat(&[&q, &q.neg()?], 2)?; // scores of 128 and −128
    /// let v = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
    /// let y = |options: &Attention| attention(&q, &k, &v, options)?.sum_all()?.to_scalar::<f32>();
    /// assert_eq!(y(&Attention::default())?, 1.); // sees the first key only
    /// assert!((y(&Attention::default().softcap(1e-3))? - 2.).abs() < 0.01); // and both about equally
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Sets each weight to zero with probability `rate`, in [0, 1), and divides the others by 1 − `rate`. Which ones depends on the
    /// weight's position and, within [`seeded`](crate::seeded), on its seed and the number of draws before, so a retry and recomputation
    /// drop the same weights; elsewhere each call draws a fresh seed.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention, seeded};
    ///
    /// let q = Tensor::randn(0f32, 1., (1, 4, 10, 8), &Device::Cpu)?; // [batch, heads, queries, width]
    /// let options = Attention::default().dropout(0.1);
    /// let run = || seeded(7, || attention(&q, &q, &q, &options)?.flatten_all()?.to_vec1::<f32>());
    /// assert_eq!(run()?, run()?); // the same weights are dropped
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn dropout(mut self, rate: f64) -> Self {
        self.dropout = rate;
        self
    }

    /// The bytes of a GPU that scores take at a time, with their gradients, in place of 256 MiB: more means fewer kernels, less a lower peak.
    /// Scores of one query of a key head are never parted. Sums are rounded differently with another number. On the CPU it changes
    /// nothing.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Attention, attention};
    ///
    /// let q = Tensor::randn(0f32, 1., (1, 4, 10, 8), &Device::Cpu)?; // [batch, heads, queries, width]
    /// let options = Attention::default().causal().chunk(1 << 30); // on an 80 GB card
    /// assert_eq!(attention(&q, &q, &q, &options)?.dims(), [1, 4, 10, 8]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }
}

/// The sizes of (batch, heads, queries, width), (batch, key_heads, keys, width) and (batch, key_heads, keys, value_width).
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub batch: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub value_width: usize,
}

impl Sizes {
    fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        let (batch, heads, queries, width) = q.dims4()?;
        let (_, key_heads, keys, _) = k.dims4()?;
        let (_, _, _, value_width) = v.dims4()?;
        let (qs, ks, vs) = (q.shape(), k.shape(), v.shape());
        if k.dims() != [batch, key_heads, keys, width] {
            bail!("attention: batch and width of q {qs:?} and k {ks:?} differ")
        }
        if v.dims() != [batch, key_heads, keys, value_width] {
            bail!("attention: batch, heads and length of k {ks:?} and v {vs:?} differ")
        }
        if key_heads == 0 || !heads.is_multiple_of(key_heads) {
            bail!("attention: the heads of q {qs:?} are not a multiple of those of k {ks:?}")
        }
        if width == 0 {
            bail!("attention: q {qs:?} and k {ks:?} have heads of width 0")
        }
        Ok(Self {
            batch,
            heads,
            key_heads,
            queries,
            keys,
            width,
            value_width,
        })
    }

    /// The number of query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    pub fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }
}

/// How scores become weights. It keeps the mask.
#[derive(Debug, Clone)]
pub struct Rule {
    pub sizes: Sizes,
    pub scale: f64,
    pub softcap: Option<f64>,
    pub dropout: Option<Dropout>,
    /// Contiguous, outside the graph; each of its 4 sizes is 1 or that of the scores.
    pub mask: Option<Tensor>,
    /// ALiBi's slopes (heads), contiguous, in the type of sums.
    pub slopes: Option<Tensor>,
    /// The first head among those of all samples: not 0 in a part.
    pub first_head: usize,
    /// Heads of a sample, also in a part.
    pub all_heads: usize,
    /// The key at the position of the first query.
    pub offset: i64,
    /// The first and the last key that the first query sees, if there were so many; each query sees one further than that before it.
    /// Between −queries, for keys before all that any query sees, and the number of keys.
    pub seen: [i64; 2],
    /// The bytes of a GPU that scores take at a time.
    pub chunk: usize,
}

const CHUNK: usize = 256 << 20;

impl Rule {
    pub fn new(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention) -> Result<Self> {
        let sizes = Sizes::of(q, k, v)?;
        for other in [Some(k), Some(v), options.mask.as_ref()]
            .into_iter()
            .flatten()
        {
            same_type(NAME, q.dtype(), other.dtype())?;
            same_device(NAME, q.device(), other.device())?;
        }
        let scale = options.scale.unwrap_or(1. / (sizes.width as f64).sqrt());
        if !scale.is_finite() {
            bail!("attention: scale must be finite, got {scale}")
        }
        if let Some(cap) = options.softcap
            && !(cap.is_finite() && cap > 0.)
        {
            bail!("attention: softcap must be positive and finite, got {cap}")
        }
        // Sums of a few do not overflow.
        const MOST: i64 = i64::MAX / 8;
        let number = |size: usize| i64::try_from(size).unwrap_or(MOST).min(MOST);
        let (queries, keys) = (number(sizes.queries), number(sizes.keys));
        let offset = options.offset.map_or(keys - queries, number);
        let unlimited = [i64::MAX / 2; 2];
        let [left, right] = options
            .window
            .map_or(unlimited, |window| window.map(number));
        let right = if options.causal { 0 } else { right };
        let seen = [offset - left, offset + right];
        let slopes = options.alibi.as_ref();
        let slopes = slopes.map(|slopes| each_head(slopes, &sizes, q));
        let mask = options.mask.as_ref().map(|mask| lay_out(mask, &sizes));
        Ok(Self {
            sizes,
            scale,
            softcap: options.softcap,
            dropout: Dropout::new(options.dropout)?,
            mask: mask.transpose()?,
            slopes: slopes.transpose()?,
            first_head: 0,
            all_heads: sizes.heads,
            offset,
            seen: seen.map(|key| key.clamp(-queries, keys)),
            chunk: options.chunk.unwrap_or(CHUNK),
        })
    }

    /// The keys that a query sees. The mask can hide some of them.
    pub fn seen(&self, query: usize) -> Range<usize> {
        let key = |key: i64| (query as i64 + key).clamp(0, self.sizes.keys as i64) as usize;
        let [first, last] = self.seen;
        let end = key(last + 1);
        key(first).min(end)..end
    }

    /// The same, counted from a key on.
    pub fn seen_from(&self, query: usize, first: usize) -> Range<usize> {
        let seen = self.seen(query);
        seen.start.saturating_sub(first)..seen.end.saturating_sub(first)
    }

    /// The same rule for some samples and key heads: for all key heads, or of one sample.
    pub fn part(&self, samples: &Range<usize>, key_heads: &Range<usize>) -> Result<Self> {
        let (mut part, group) = (self.clone(), self.sizes.group());
        let (first, heads) = (key_heads.start * group, key_heads.len() * group);
        let of_dims = [(0, samples.start, samples.len()), (1, first, heads)];
        for (dim, start, len) in of_dims {
            if let Some(mask) = part.mask.take_if(|mask| mask.dims()[dim] > 1) {
                part.mask = Some(mask.narrow(dim, start, len)?);
            }
        }
        let slopes = self.slopes.as_ref();
        let slopes = slopes.map(|slopes| slopes.narrow(0, first, heads));
        part.slopes = slopes.transpose()?;
        part.first_head += samples.start * self.sizes.heads + first;
        part.sizes.batch = samples.len();
        (part.sizes.heads, part.sizes.key_heads) = (heads, key_heads.len());
        Ok(part)
    }

    /// The position of the first of a query's scores in all scores.
    pub fn first_score(&self, batch: usize, head: usize, query: usize) -> u64 {
        let head = self.first_head + batch * self.sizes.heads + head;
        let row = head as u64 * self.sizes.queries as u64;
        (row + query as u64).wrapping_mul(self.sizes.keys as u64)
    }

    /// The same rule with the mask in another type.
    pub fn in_type(&self, dtype: DType) -> Result<Self> {
        let mut rule = self.clone();
        let mask = self.mask.as_ref().map(|mask| mask.to_dtype(dtype));
        rule.mask = mask.transpose()?;
        Ok(rule)
    }
}

/// ALiBi's slopes on the device of `q`, in the type of sums.
fn each_head(slopes: &Tensor, sizes: &Sizes, q: &Tensor) -> Result<Tensor> {
    if slopes.dims() != [sizes.heads] {
        bail!(
            "attention: ALiBi slopes of shape {:?} for {} heads",
            slopes.shape(),
            sizes.heads
        )
    }
    if slopes.track_op() {
        bail!("attention: ALiBi slopes get no gradient: detach them, or add the bias as a mask")
    }
    let slopes = slopes.to_device(q.device())?;
    slopes.to_dtype(wide(q.dtype()))?.contiguous()
}

/// The mask with 4 dimensions. What it broadcasts is not repeated, nor what a constant mask was broadcast to.
fn lay_out(mask: &Tensor, sizes: &Sizes) -> Result<Tensor> {
    let scores = sizes.scores();
    let mut laid = mask.detach();
    while laid.rank() < scores.len() {
        laid = laid.unsqueeze(0)?;
    }
    let fits = |(dim, full): (&usize, usize)| *dim == 1 || *dim == full;
    if laid.rank() > scores.len() || !laid.dims().iter().zip(scores).all(fits) {
        let shape = mask.shape();
        bail!(
            "attention: a mask of shape {shape:?} cannot be broadcast to scores of shape {scores:?}"
        )
    }
    if !mask.track_op() {
        for (dim, stride) in laid.stride().to_vec().into_iter().enumerate() {
            if stride == 0 && laid.dim(dim)? > 1 {
                laid = laid.narrow(dim, 0, 1)?;
            }
        }
    }
    laid.contiguous()
}

/// Dropout of the elements of a tensor, without a stored mask.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    pub seed: u64,
    /// Elements whose random 32 bits are below this are dropped.
    pub threshold: u32,
    /// What the others are multiplied by.
    pub factor: f64,
}

impl Dropout {
    /// The next dropout of the thread's scope. `None` for a rate of 0, and where dropout is frozen.
    pub fn new(rate: f64) -> Result<Option<Self>> {
        if !(0. ..1.).contains(&rate) {
            bail!("dropout rate must be in [0, 1), got {rate}")
        }
        Ok((rate > 0. && !is_frozen()).then(|| Self {
            seed: derive(),
            threshold: (rate * 2f64.powi(32)) as u32,
            factor: 1. / (1. - rate),
        }))
    }

    /// Whether the elements from a position on are kept.
    pub fn keeps(self, first: u64) -> impl Iterator<Item = bool> {
        let group = philox::NUMBERS as u64;
        let numbers =
            (first / group..).flat_map(move |at| philox::numbers(self.seed, philox::ATTENTION, at));
        let skipped = (first % group) as usize;
        numbers
            .skip(skipped)
            .map(move |number| number >= self.threshold)
    }
}
