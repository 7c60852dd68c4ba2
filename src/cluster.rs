//! The way to the API server, on which nobody waits without end.

use std::time::Duration;

use kube::client::ClientBuilder;
use kube::{Client, Config};
use tower::timeout::TimeoutLayer;

/// How long the API server may take to begin an answer, a list or a watch included. Longer than it keeps a request in its
/// own queues (15 s) before it says that it has too much to do.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A client that gives a request up when no answer begins within [`ANSWER_TIMEOUT`].
///
/// # Errors
/// If the configuration cannot be used.
pub fn client(mut config: Config) -> Result<Client, kube::Error> {
    // Ours to do: the client's own would hide for how long the API server has been asking for patience.
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config)?.with_layer(&TimeoutLayer::new(ANSWER_TIMEOUT)).build())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_takes_a_request_and_never_answers_is_given_up() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = client(Config::new(url.parse().unwrap())).unwrap();
        let error = client.apiserver_version().await.unwrap_err();
        assert!(matches!(&error, kube::Error::Service(why) if why.is::<tower::timeout::error::Elapsed>()), "{error:?}");
    }
}
