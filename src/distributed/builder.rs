//! How a group is opened: what the launcher says of this process, where the ranks meet (through MPI, or where rank 0 listens), and which of them
//! share a machine.

use std::sync::Arc;
use std::time::Duration;

use super::control::{Control, Deadline, FAN_OUT, Meeting};
use super::engines::Mpi;
use super::group::{Group, Inner};
use super::launch::{Launch, Variables};
use crate::error::{Result, invalid};
use crate::host;

/// As long as PyTorch waits for NCCL.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What a message takes at least.
const SHORTEST: Duration = Duration::from_millis(1);
/// A year, because clocks cannot count much further.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Options of a [`Group`]; from [`Group::builder`].
///
/// ```
/// use std::time::Duration;
///
/// use candle_headroom::distributed::Group;
///
/// let group = Group::builder().timeout(Duration::from_secs(60)).open()?;
/// assert!(group.rank() < group.size());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `open()`"]
pub struct GroupBuilder {
    timeout: Duration,
    variables: Option<Variables>,
    /// The most branches of a rank in the tree in which messages go.
    pub(crate) fan_out: usize,
}

impl Group {
    /// Sets options before the group is opened.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::builder().variables([("RANK", "0"), ("WORLD_SIZE", "1")]).open()?;
    /// assert_eq!((group.rank(), group.size()), (0, 1));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder() -> GroupBuilder {
        GroupBuilder {
            timeout: TIMEOUT,
            variables: None,
            fan_out: FAN_OUT,
        }
    }

    /// Joins the ranks that a launcher started with this process; see [`GroupBuilder::open`].
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?; // `mpirun -n 4 …`, torchrun, `srun`, or alone
    /// println!("rank {} of {} on {}", group.rank(), group.size(), group.hosts()[group.rank()]);
    /// assert!(group.rank() < group.size());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`GroupBuilder::open`].
    pub fn from_environment() -> Result<Self> {
        Self::builder().open()
    }
}

impl GroupBuilder {
    /// Sets how long ranks wait for each other, to join and in each call; 10 minutes by default. It must be longer than ranks may differ in the
    /// time of a step, with its retries and its loading of data, and than an exchange of all gradients takes. Time in which a rank works on a
    /// checkpoint, or in which this process is suspended, does not count. It is at most a year.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use candle_headroom::distributed::Group;
    ///
    /// // A step takes up to 5 minutes on the slowest rank.
    /// let group = Group::builder().timeout(Duration::from_secs(15 * 60)).open()?;
    /// group.barrier()?;
    /// assert_eq!(group.hosts().len(), group.size());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// Reads these variables in place of the process's environment.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let incomplete = Group::builder().variables([("RANK", "0"), ("WORLD_SIZE", "2")]);
    /// let error = incomplete.open().unwrap_err();
    /// assert!(error.is_group());
    /// assert!(error.to_string().starts_with("RANK=0, WORLD_SIZE=2, but MASTER_ADDR and MASTER_PORT are not set"));
    /// ```
    pub fn variables<K: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        self.variables = Some(Variables(variables.collect()));
        self
    }

    /// Joins the other ranks, which it finds by what the launcher has set:
    ///
    /// | launcher | variables | ranks meet |
    /// |---|---|---|
    /// | `mpirun`, `srun --mpi=pmix` | `OMPI_COMM_WORLD_RANK`, `PMI_RANK`, `PMIX_RANK` and others | through MPI, with the feature `mpi` |
    /// | torchrun, or a script | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` | at that address, where rank 0 listens |
    /// | `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID` | on the step's first machine, at `MASTER_ADDR` and `MASTER_PORT` if they are set |
    /// | none | | the process is a group of one |
    ///
    /// Ranks send each other everything as it is: use a network that you trust. Where several users share it, set `HEADROOM_SECRET` to the same
    /// random text on all ranks: rank 0 refuses whoever does not send it. With MPI rank 0 makes one up, and MPI passes it on.
    ///
    /// With more than 17 ranks some listen, at ports that the system chooses, for others that join them: messages go through a tree of ranks.
    ///
    /// The timeout is that of the whole call. `MPI_Init` waits for all ranks and cannot be interrupted, so it runs in a thread. If it does not return
    /// in time, this call fails and the thread stays behind: return the error from `main` or exit, since the process cannot open a group any more.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let error = Group::builder().variables([("RANK", "2"), ("WORLD_SIZE", "2")]).open().unwrap_err();
    /// assert!(error.is_group());
    /// assert!(error.to_string().starts_with("RANK=2, WORLD_SIZE=2: ranks are counted from 0"), "{error}");
    /// ```
    ///
    /// # Errors
    /// - variables that are incomplete, wrong or contradict each other, which the error quotes ([`is_group`](crate::Error::is_group));
    /// - rank 0 cannot be reached or refuses this rank, for example because another has its number (`is_group`);
    /// - ranks did not join within the timeout (`is_group`), by name on every rank that did;
    /// - [`GroupError::Broken`](crate::error::GroupError::Broken) if MPI cannot be initialized, also if ranks are missing in `MPI_Init` of a job on
    ///   several machines: then it says which ranks wait on this machine.
    pub fn open(self) -> Result<Group> {
        let is_own = self.variables.is_none();
        let variables = self.variables.unwrap_or_else(Variables::of_process);
        let launch = Launch::read(&variables)?;
        // Variables that a caller made up say nothing of MPI.
        let mut deadline = Deadline::new(self.timeout);
        let mpi = match launch.has_mpi && is_own {
            true => Mpi::start(&launch, &mut deadline)?,
            false => None,
        };
        let control = match (&mpi, &launch.address) {
            (Some(mpi), _) => {
                let control = mpi.control(&launch, self.fan_out, &mut deadline);
                let control = control.and_then(|control| check_agreement(&launch, control));
                control.inspect_err(|_| mpi.abandon())?
            }
            (None, Some((host, port))) => {
                let Launch { job, secret, .. } = &launch;
                let rank = (launch.rank, launch.size);
                let meeting = Meeting::new(rank, self.fan_out, job, secret);
                meeting.at(host, *port, &mut deadline)?
            }
            (None, None) if launch.size == 1 => Control::alone(self.timeout),
            (None, None) => {
                let (rank, size) = (launch.rank, launch.size);
                return Err(invalid!(
                    Group,
                    "this is rank {rank} of {size} that MPI's launcher started, and nothing says where they meet: {}, or set MASTER_ADDR and MASTER_PORT",
                    Mpi::absent()
                ));
            }
        };
        // Machines may have one name, and the containers of one machine may each see another GPU as the first.
        let machine = format!("{}\n{}", host::name(), host::boot()).into_bytes();
        let machines = control.gather("open", &machine).inspect_err(|_| {
            // Its end waits for all ranks, of which one is lost.
            if let Some(mpi) = &mpi {
                mpi.abandon();
            }
        })?;
        let here = machines.iter().enumerate();
        let here = here.filter(|(_, other)| **other == machine);
        let mut beside: Vec<_> = here.map(|(rank, _)| rank).collect();
        let before = beside.iter().filter(|rank| **rank < control.rank());
        let local_rank = launch.local_rank.unwrap_or(before.count());
        beside.retain(|rank| *rank != control.rank());
        let hosts = machines.iter().map(|machine| {
            let machine = String::from_utf8_lossy(machine);
            machine.lines().next().unwrap_or_default().to_owned()
        });
        let hosts = hosts.collect();
        Ok(Group(Arc::new(Inner {
            control: Arc::new(control),
            local_rank,
            hosts,
            beside,
            mpi,
            engines: Default::default(),
        })))
    }
}

/// MPI knows the truth; variables may come from another launcher around it.
fn check_agreement(launch: &Launch, control: Control) -> Result<Control> {
    let (rank, size) = (control.rank(), control.size());
    if launch.size == 1 || (launch.rank, launch.size) == (rank, size) {
        return Ok(control);
    }
    let hint = match size {
        1 => ": the program is linked with another MPI than the launcher's",
        _ => "",
    };
    Err(invalid!(
        Group,
        "the launcher's variables say rank {} of {}, MPI says rank {rank} of {size}{hint}",
        launch.rank,
        launch.size
    ))
}
