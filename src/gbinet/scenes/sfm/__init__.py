"""Structure from motion: bare photos -> posed scene."""

from gbinet.scenes.sfm.pose import PosedPhotos as PosedPhotos
from gbinet.scenes.sfm.pose import pose_photos as pose_photos
