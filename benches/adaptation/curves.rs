//! Devices that exist as numbers only: what a micro-batch takes on them, and how much there is.

/// Bytes that samples are counted in.
pub const SAMPLE: f64 = 32. * 1024. * 1024.;

/// What micro-batches take of memory, and what there is of it, from step to step.
#[derive(Clone, Debug)]
pub struct Curve {
    pub name: &'static str,
    /// Samples in each step.
    pub batch: usize,
    /// What a micro-batch takes besides its samples, in samples.
    pub base: f64,
    /// How much of the base the forward pass takes too, in samples; `None` where nobody looks after the forward pass.
    pub forward_base: Option<f64>,
    /// From so many samples on larger micro-batches are no faster for each; `None` where nobody takes the time.
    pub plateau: Option<usize>,
    /// What a micro-batch takes at least, in samples: gradients, say, that peak before the activations do.
    pub flat: f64,
    /// What the first one allocates for ever, in samples.
    pub once: f64,
    /// Each peak lies at most this part above or below the curve.
    pub noise: f64,
    /// Peaks are rounded up to whole multiples of this, in samples.
    pub rounding: f64,
    /// From so many samples on a workspace of so many samples is used.
    pub workspace: Option<(usize, f64)>,
    /// For how many samples there is room, with base and workspace, from each step on.
    pub rooms: Vec<(usize, usize)>,
    /// Whether nobody measures memory.
    pub is_blind: bool,
    /// How much longer than the first batch's samples each step's are, in turn.
    pub lengths: Vec<f64>,
}

impl Curve {
    /// A straight line and always the same room.
    pub fn affine(batch: usize, room: usize) -> Self {
        Self {
            name: "affine",
            batch,
            base: 20.,
            forward_base: Some(0.),
            plateau: None,
            flat: 0.,
            once: 0.,
            noise: 0.,
            rounding: 0.,
            workspace: None,
            rooms: vec![(0, room)],
            lengths: vec![1.],
            is_blind: false,
        }
    }
}

/// One device while it runs.
#[derive(Clone, Debug)]
pub struct Device {
    pub curve: Curve,
    pub step: usize,
    /// Steps that were thrown away: the room changes with time, whoever begins again.
    pub lost: usize,
    pub in_use: f64,
    seed: u64,
}

impl Device {
    pub fn new(curve: &Curve, seed: u64) -> Self {
        Self {
            curve: curve.clone(),
            step: 0,
            lost: 0,
            in_use: 0.,
            seed,
        }
    }

    /// How many samples of the present step's length fit, in any noise.
    pub fn room(&self) -> usize {
        let limit = self.limit();
        let fits = |size: usize| self.smooth(size) * (1. + self.curve.noise) <= limit - self.once();
        (1..=self.curve.batch * 64)
            .take_while(|size| fits(*size))
            .last()
            .unwrap_or(0)
    }

    fn once(&self) -> f64 {
        self.curve.once * SAMPLE
    }

    /// All the memory there is, in bytes.
    pub fn limit(&self) -> f64 {
        let mut rooms = self.curve.rooms.iter().rev();
        let room = rooms.find(|(from, _)| *from <= self.step + self.lost);
        let room = room
            .map_or(0., |(_, room)| *room as f64)
            .max(self.curve.flat);
        let workspace = self.curve.workspace.map_or(0., |(_, samples)| samples);
        let samples = (room + self.curve.base + workspace) * (1. + self.curve.noise);
        (samples + self.curve.once + self.curve.rounding) * SAMPLE
    }

    pub fn length(&self) -> f64 {
        let lengths = &self.curve.lengths;
        lengths[self.step % lengths.len()]
    }

    /// What a micro-batch takes above what is in use, without noise, in bytes.
    fn smooth(&self, size: usize) -> f64 {
        let curve = &self.curve;
        let mut samples = curve.base + (size as f64 * self.length()).max(curve.flat);
        if let Some((from, workspace)) = curve.workspace
            && size >= from
        {
            samples += workspace;
        }
        match curve.rounding > 0. {
            true => (samples / curve.rounding).ceil() * curve.rounding * SAMPLE,
            false => samples * SAMPLE,
        }
    }

    /// What the forward pass of a micro-batch takes above what is in use, in bytes: its part of the base and 0.6 of its
    /// samples.
    pub fn forward(&self, size: usize) -> Option<u64> {
        let base = self.curve.forward_base?;
        Some(((base + size as f64 * self.length() * 0.6) * SAMPLE) as u64)
    }

    /// How long a micro-batch takes: each sample a millisecond, or longer where there are few.
    pub fn seconds(&self, size: usize) -> Option<f64> {
        let plateau = self.curve.plateau?;
        Some(size.max(plateau) as f64 * self.length() * 1e-3)
    }

    /// Runs a micro-batch: its peak in bytes, or nothing where that is more than there is.
    pub fn run(&mut self, size: usize) -> Option<u64> {
        let sway = self.random() * 2. - 1.;
        let own = self.smooth(size) * (1. + self.curve.noise * sway);
        let once = (self.once() - self.in_use).max(0.);
        let peak = self.in_use + once + own;
        if peak > self.limit() {
            return None;
        }
        self.in_use += once;
        Some(peak as u64)
    }

    /// Between 0 and 1 (Knuth's multiplier): the same in each run.
    fn random(&mut self) -> f64 {
        self.seed = (self.seed)
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) as f64 / (1u64 << 31) as f64
    }
}
