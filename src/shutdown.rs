//! Leaving in order: unready first, then no new connections, then an end to the old ones.
//!
//! ```text
//! signal ── grace ──► draining ── deadline ──► now
//! unready   the endpoints    what has begun    what has not
//!           forget us        is finished       ended is cut
//! ```
//! A second signal skips to the end.

use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::readiness::Readiness;

/// How far the shutdown is; clones share it. Nothing happens by default: see [`Shutdown::conduct`].
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Begin nothing new, finish what has begun.
    pub draining: CancellationToken,
    /// End at once. Never without `draining`.
    pub now: CancellationToken,
}

/// How long each phase may last.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// From the signal until nothing new is accepted: as long as it takes until nobody sends us requests any more
    /// (endpoints, and the proxies that follow them). Zero where nobody sends any.
    pub grace: Duration,
    /// From there until everything is cut off.
    pub deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), deadline: Duration::from_secs(20) }
    }
}

/// What asks us to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: the kubelet.
    Terminate,
    /// SIGINT: a person at a terminal.
    Interrupt,
}

/// The signals that ask us to leave. From this call on they no longer end the process by themselves.
///
/// # Errors
/// If the handlers cannot be installed.
pub fn signals() -> io::Result<impl Stream<Item = Signal> + Unpin + Send> {
    let listen = |kind, name| {
        signal(kind).map(|signal| {
            stream::unfold(signal, move |mut signal| async move { signal.recv().await.map(|()| (name, signal)) })
        })
    };
    let terminate = listen(SignalKind::terminate(), Signal::Terminate)?;
    let interrupt = listen(SignalKind::interrupt(), Signal::Interrupt)?;
    Ok(Box::pin(stream::select(terminate, interrupt)))
}

impl Shutdown {
    /// Waits for the first signal, and conducts the shutdown to its last phase. Whoever has ended by then need not be
    /// waited for: the process may end as soon as its work has.
    pub async fn conduct(
        &self,
        readiness: &Readiness,
        settings: Settings,
        mut signals: impl Stream<Item = Signal> + Unpin,
    ) {
        let Some(signal) = signals.next().await else { return };
        info!(?signal, grace = ?settings.grace, "asked to stop: unready from now on");
        readiness.stop();
        if !again(settings.grace, &mut signals).await {
            info!(deadline = ?settings.deadline, "accepting nothing new, finishing what has begun");
            self.draining.cancel();
            if !again(settings.deadline, &mut signals).await {
                warn!("the deadline is over: cutting off what has not ended");
            }
        }
        self.draining.cancel();
        self.now.cancel();
    }
}

/// Waits, unless another signal comes: `true`.
async fn again(time: Duration, signals: &mut (impl Stream<Item = Signal> + Unpin)) -> bool {
    tokio::select! {
        () = tokio::time::sleep(time) => false,
        Some(signal) = signals.next() => {
            warn!(?signal, "asked again: stopping at once");
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::readiness::State;

    fn phases(shutdown: &Shutdown) -> (bool, bool) {
        (shutdown.draining.is_cancelled(), shutdown.now.is_cancelled())
    }

    #[tokio::test(start_paused = true)]
    async fn unready_then_draining_then_over() {
        let (shutdown, readiness) = (Shutdown::default(), Readiness::default());
        let (send, signals) = mpsc::unbounded();
        let task = tokio::spawn({
            let (shutdown, readiness) = (shutdown.clone(), readiness.clone());
            async move { shutdown.conduct(&readiness, Settings::default(), signals).await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((readiness.state(), phases(&shutdown)), (State::Ready, (false, false)));

        let begun = Instant::now();
        send.unbounded_send(Signal::Terminate).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((readiness.state(), phases(&shutdown)), (State::Stopping, (false, false)));
        shutdown.draining.cancelled().await;
        assert_eq!(phases(&shutdown), (true, false));
        task.await.unwrap();
        assert_eq!(phases(&shutdown), (true, true));
        assert_eq!(begun.elapsed().as_secs(), 25);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_is_obeyed_at_once() {
        let (shutdown, readiness) = (Shutdown::default(), Readiness::default());
        let begun = Instant::now();
        let signals = stream::iter([Signal::Terminate, Signal::Interrupt]);
        shutdown.conduct(&readiness, Settings::default(), signals).await;
        assert_eq!(phases(&shutdown), (true, true));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn real_signals_are_told_apart() {
        let mut signals = signals().unwrap();
        for (number, signal) in
            [(signal_hook::consts::SIGTERM, Signal::Terminate), (signal_hook::consts::SIGINT, Signal::Interrupt)]
        {
            signal_hook::low_level::raise(number).unwrap();
            assert_eq!(signals.next().await, Some(signal));
        }
    }
}
