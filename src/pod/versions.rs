//! Which versions of Kubernetes run native sidecars, and whether a cluster's are such.

use std::fmt;

use super::facts::Native;

/// A version of Kubernetes, as far as it decides anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

/// Native sidecars are on by default since then; before, a kubelet may take them for init containers that never end.
pub const EARLIEST: Version = Version { major: 1, minor: 29 };
/// Nothing can switch them off since then.
pub const SURE: Version = Version { major: 1, minor: 33 };

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The version of its kubelet, as it says it.
    pub kubelet: String,
    /// It runs Windows.
    pub windows: bool,
}

impl Version {
    /// Reads `v1.33.4-eks-99`, `1.33+` and the like.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (major, rest) = text.strip_prefix('v').unwrap_or(text).split_once('.')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (minor, rest) = rest.split_at(end);
        // `u32` would take a sign.
        let number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
        let version = Self { major: number(major)??, minor: number(minor)?? };
        rest.is_empty().then_some(()).or_else(|| rest.starts_with(['.', '-', '+']).then_some(()))?;
        Some(version)
    }

    /// Reads the least version that native sidecars are to be used with.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn minimum(text: &str) -> Result<Self, String> {
        let version = Self::read(text).ok_or("not a version of Kubernetes: write it as 1.33")?;
        if version < EARLIEST {
            return Err(format!("Kubernetes has had native sidecars by default since {EARLIEST}, and not before"));
        }
        Ok(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Can this cluster run native sidecars? Only if every node can: nobody knows where a pod will run. A cordoned one counts
/// too, since it can be made to take pods again at any time.
pub fn native<'a>(minimum: Version, server: &str, nodes: impl IntoIterator<Item = &'a Node>) -> Native {
    if let Some(why) = too_old("the API server", server, minimum) {
        return Native::Impossible(why);
    }
    let mut nodes = nodes.into_iter().peekable();
    if nodes.peek().is_none() {
        return Native::Impossible("no node is known".to_owned());
    }
    nodes.find_map(|node| unfit(node, minimum)).map_or(Native::Possible, Native::Impossible)
}

fn unfit(node: &Node, minimum: Version) -> Option<String> {
    if node.windows {
        return Some(format!("node {} runs Windows", node.name));
    }
    too_old(&format!("node {}", node.name), &node.kubelet, minimum)
}

fn too_old(who: &str, says: &str, minimum: Version) -> Option<String> {
    match Version::read(says) {
        Some(version) if version >= minimum => None,
        Some(_) => {
            let what = if who.starts_with("node ") { "kubelet " } else { "" };
            Some(format!("{who} runs {what}{says}, and {minimum} is needed"))
        }
        None if says.is_empty() => Some(format!("{who} does not say which version it runs")),
        None => Some(format!("{who} runs a version that cannot be read: \"{says}\"")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn version(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    #[rstest]
    #[case::plain("v1.33.4", version(1, 33))]
    #[case::eks("v1.33.4-eks-99", version(1, 33))]
    #[case::k3s("v1.33.1+k3s1", version(1, 33))]
    #[case::gke("v1.30.2-gke.1587003", version(1, 30))]
    #[case::before_a_release("v1.34.0-alpha.1.12+0a1b2c3", version(1, 34))]
    #[case::of_the_api_server("1.33", version(1, 33))]
    #[case::of_a_managed_api_server("1.33+", version(1, 33))]
    #[case::of_another_age("v2.0.0", version(2, 0))]
    fn a_version_is_read(#[case] text: &str, #[case] expected: Version) {
        assert_eq!(Version::read(text), Some(expected));
    }

    #[rstest]
    #[case::nothing("")]
    #[case::words("fake")]
    #[case::no_minor("v1")]
    #[case::an_empty_minor("1.")]
    #[case::an_empty_major("v.33")]
    #[case::a_sign("1.+33")]
    #[case::another_sign("+1.33")]
    #[case::letters("1.33rc")]
    #[case::too_much("1.99999999999")]
    fn what_is_no_version_is_none(#[case] text: &str) {
        assert_eq!(Version::read(text), None);
    }

    #[rstest]
    #[case("1.29", Ok(EARLIEST))]
    #[case("v1.35.1", Ok(version(1, 35)))]
    #[case("1.28", Err("Kubernetes has had native sidecars by default since 1.29, and not before"))]
    #[case("latest", Err("not a version of Kubernetes: write it as 1.33"))]
    fn a_minimum_is_read_or_explained(#[case] text: &str, #[case] expected: Result<Version, &str>) {
        assert_eq!(Version::minimum(text), expected.map_err(str::to_owned));
    }

    fn node(name: &str, kubelet: &str) -> Node {
        Node { name: name.to_owned(), kubelet: kubelet.to_owned(), windows: false }
    }

    #[rstest]
    #[case::all("1.33+", &[("a", "v1.33.0"), ("b", "v1.34.2-eks-1")], "")]
    #[case::an_old_node("1.33", &[("a", "v1.33.0"), ("b", "v1.30.2")], "node b runs kubelet v1.30.2, and 1.33 is needed")]
    #[case::an_old_server("1.32", &[("a", "v1.33.0")], "the API server runs 1.32, and 1.33 is needed")]
    #[case::no_node("1.33", &[], "no node is known")]
    #[case::a_node_that_says_nothing("1.33", &[("a", "")], "node a does not say which version it runs")]
    #[case::a_node_of_another_kind("1.33", &[("a", "fake")], "node a runs a version that cannot be read: \"fake\"")]
    #[case::a_server_of_another_kind("x.y", &[("a", "v1.33.0")], "the API server runs a version that cannot be read: \"x.y\"")]
    fn a_cluster_can_if_all_of_it_can(#[case] server: &str, #[case] nodes: &[(&str, &str)], #[case] why: &str) {
        let nodes: Vec<Node> = nodes.iter().map(|(name, kubelet)| node(name, kubelet)).collect();
        let expected = if why.is_empty() { Native::Possible } else { Native::Impossible(why.to_owned()) };
        assert_eq!(native(SURE, server, &nodes), expected);
    }

    #[test]
    fn an_operator_may_ask_for_less_and_windows_never_can() {
        let mut nodes = [node("a", "v1.29.1")];
        assert_eq!(native(EARLIEST, "1.29", &nodes), Native::Possible);
        nodes[0].windows = true;
        assert_eq!(native(EARLIEST, "1.29", &nodes), Native::Impossible("node a runs Windows".to_owned()));
    }
}
